# SPDX-License-Identifier: Apache-2.0

import sys

from tools.cloud import main

sys.exit(main.main())
