{
    "pending": {
        "since": "%(isotime)s",
        "asked_to_wait": true,
        "attempts": 1,
        "last_attempt": "%(isotime)s",
        "reason": "nothing_fits",
        "message": "No valid host was found. ",
        "advice": "Rebuild the server with a flavor, an image or an availability zone for which there are hosts: no host could take it, even if it were empty.",
        "requests": [
            "resources=DISK_GB%%3A160%%2CMEMORY_MB%%3A16384%%2CVCPU%%3A8&root_required=%(required)s"
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
