"""Holds an OpenAPI description and answers against each other.

usage: openapi.py DESCRIPTION < ANSWERS

ANSWERS is a list of [path, method, status, body], path as the description writes it. Prints what does not fit, a line each.
"""

import json
import sys

sys.path.insert(0, "target/python/openapi")

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        description = json.load(file)
    for error in OpenAPIV31SpecValidator(description).iter_errors():
        print("description:", error.message)
    for path, method, status, body in json.load(sys.stdin):
        where = f"{method} {path} {status}"
        responses = description["paths"].get(path, {}).get(method.lower(), {}).get("responses", {})
        response = responses.get(str(status))
        if response is None:
            print(where, "is not described")
            continue
        while "$ref" in response:
            response = description["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        schema = {**response["content"]["application/json"]["schema"], "components": description["components"]}
        for error in Draft202012Validator(schema).iter_errors(body):
            print(where, error.json_path, error.message)


main()
