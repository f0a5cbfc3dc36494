"""Transformers, which replace values on their way to the destination: for `Table(transform=...)` and `Transform(...)`.

from airflow_provider_pgetl.transformers import Email, Mask

Table("public.customers", transform={"email": Email(), "card": Mask("credit_card")})
"""

from airflow_provider_pgetl.engine.config.transformers import (
    Address,
    Boolean,
    Choice,
    Company,
    Constant,
    Custom,
    Date,
    Email,
    Encrypt,
    FirstName,
    Float,
    FullName,
    Hash,
    Hstore,
    Integer,
    Ip,
    Json,
    Keep,
    LastName,
    Mask,
    Null,
    Phone,
    String,
    Template,
    Timestamp,
    Uuid,
)

__all__ = [
    "Address",
    "Boolean",
    "Choice",
    "Company",
    "Constant",
    "Custom",
    "Date",
    "Email",
    "Encrypt",
    "FirstName",
    "Float",
    "FullName",
    "Hash",
    "Hstore",
    "Integer",
    "Ip",
    "Json",
    "Keep",
    "LastName",
    "Mask",
    "Null",
    "Phone",
    "String",
    "Template",
    "Timestamp",
    "Uuid",
]
