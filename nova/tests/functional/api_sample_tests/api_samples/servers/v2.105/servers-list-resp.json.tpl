{
    "servers": [
        {
            "id": "%(uuid)s",
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
            "name": "new-server-test"
        }
    ]
}
