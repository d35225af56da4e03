{
    "pending": {
        "microversions": {
            "pending": "%(number)s",
            "reason": "%(number)s",
            "rebuild": "%(number)s"
        }
    }
}
