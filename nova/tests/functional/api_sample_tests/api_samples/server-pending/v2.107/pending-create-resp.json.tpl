{
    "pending": {
        "reason": null,
        "requests": [
            "resources=DISK_GB%%3A1%%2CMEMORY_MB%%3A512%%2CVCPU%%3A1&root_required=%(required)s"
        ],
        "hosts": [
            {
                "host": "compute",
                "uuid": "%(uuid)s",
                "refused_by": null
            }
        ]
    }
}
