{
    "rebuild": {
        "flavorRef": "%(flavor)s",
        "availability_zone": null
    }
}
