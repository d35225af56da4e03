{
    "rebuild": {
        "imageRef": null,
        "description": "Tried again",
        "metadata": {
            "meta_var": "meta_val"
        }
    }
}
