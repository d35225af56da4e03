# SPDX-License-Identifier: Apache-2.0

import datetime
import sys
import time

import openstack

cloud = openstack.connect()
project = cloud.identity.find_project(sys.argv[1], ignore_missing=False)
servers = cloud.compute.servers(all_projects=True)
needed = {server.id for server in servers
          if server.vm_state != 'active' or server.task_state}
yesterday = datetime.datetime.fromtimestamp(
    time.time() - 86400, datetime.timezone.utc).isoformat()
for image in cloud.image.images(owner=project.id, image_type='snapshot'):
    if image.created_at < yesterday and image.instance_uuid not in needed:
        print(image.id, image.name)
