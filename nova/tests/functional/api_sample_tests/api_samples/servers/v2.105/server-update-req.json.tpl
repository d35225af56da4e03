{
    "server": {
        "name": "new-server-test",
        "description": "Sample description",
        "hostname": "new-server-hostname"
    }
}
