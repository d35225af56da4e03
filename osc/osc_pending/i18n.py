# SPDX-License-Identifier: Apache-2.0

"""Translates what a user reads."""

import oslo_i18n

_ = oslo_i18n.TranslatorFactory(domain='osc_pending').primary
