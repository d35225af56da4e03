{
    "tenant_usage": {
        "server_usages": [
            {
                "ended_at": null,
                "flavor": "m1.xlarge",
                "hours": 1.0,
                "instance_id": "%(uuid)s",
                "local_gb": 160,
                "memory_mb": 16384,
                "name": "new-server-test",
                "started_at": "%(strtime)s",
                "state": "pending",
                "tenant_id": "6f70656e737461636b20342065766572",
                "uptime": 3600,
                "vcpus": 8
            }
        ],
        "start": "2020-01-01T00:00:00.000000",
        "stop": "%(strtime)s",
        "tenant_id": "6f70656e737461636b20342065766572",
        "total_hours": 1.0,
        "total_local_gb_usage": 160.0,
        "total_memory_mb_usage": 16384.0,
        "total_vcpus_usage": 8.0
    }
}
