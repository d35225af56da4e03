{
    "pending": {
        "server": {
            "project_id": "%(project)s",
            "flavorRef": "1",
            "imageRef": "%(image)s"
        },
        "hosts": [
            "compute"
        ]
    }
}
