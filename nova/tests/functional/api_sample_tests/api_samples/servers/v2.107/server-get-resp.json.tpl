{
    "server": {
        "OS-DCF:diskConfig": "MANUAL",
        "OS-EXT-AZ:availability_zone": "",
        "OS-EXT-SRV-ATTR:hostname": "new-server-test",
        "OS-EXT-STS:power_state": 0,
        "OS-EXT-STS:task_state": null,
        "OS-EXT-STS:vm_state": "pending",
        "OS-SRV-USG:launched_at": null,
        "OS-SRV-USG:terminated_at": null,
        "accessIPv4": "",
        "accessIPv6": "",
        "addresses": {},
        "asked_to_wait": true,
        "config_drive": "",
        "created": "%(isotime)s",
        "description": null,
        "fault": {
            "code": 500,
            "created": "%(isotime)s",
            "message": "No valid host was found. "
        },
        "flavor": {
            "disk": 160,
            "ephemeral": 0,
            "extra_specs": {},
            "original_name": "m1.xlarge",
            "ram": 16384,
            "swap": 0,
            "vcpus": 8
        },
        "hostId": "",
        "id": "%(id)s",
        "image": {
            "id": "%(uuid)s",
            "links": [
                {
                    "href": "%(compute_endpoint)s/images/%(uuid)s",
                    "rel": "bookmark"
                }
            ],
            "properties": {
                "architecture": "x86_64"
            }
        },
        "key_name": null,
        "links": [
            {
                "href": "%(versioned_compute_endpoint)s/servers/%(uuid)s",
                "rel": "self"
            },
            {
                "href": "%(compute_endpoint)s/servers/%(uuid)s",
                "rel": "bookmark"
            }
        ],
        "locked": false,
        "locked_reason": null,
        "metadata": {
            "My Server Name": "Apache1"
        },
        "name": "new-server-test",
        "os-extended-volumes:volumes_attached": [],
        "pinned_availability_zone": null,
        "scheduler_hints": {},
        "server_groups": [],
        "status": "PENDING",
        "tags": [],
        "tenant_id": "6f70656e737461636b20342065766572",
        "trusted_image_certificates": null,
        "updated": "%(isotime)s",
        "user_id": "fake"
    }
}
