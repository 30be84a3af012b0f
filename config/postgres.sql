-- The table of config/postgres.yaml, and the triggers that tell gateways of changes. The role `gate` is the gateways':
-- CREATE ROLE gate LOGIN PASSWORD '...';

CREATE TABLE api_keys (
  credential text PRIMARY KEY,             -- sha256: and the SHA-256 in hexadecimal digits
  customer text NOT NULL,
  plan text NOT NULL,
  overrides jsonb,
  time_zone text,
  valid_until timestamptz,
  suspended boolean NOT NULL DEFAULT false,
  updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON api_keys (btrim(customer, E' \t\r\n\f'));
CREATE INDEX ON api_keys (updated_at);

CREATE FUNCTION tell_tollgate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('customers_changed',
    CASE WHEN TG_OP IN ('DELETE', 'TRUNCATE') OR TG_LEVEL = 'ROW' THEN 'full' ELSE '' END);
  RETURN NULL;
END $$;
CREATE TRIGGER tell_tollgate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON api_keys
  FOR EACH STATEMENT EXECUTE FUNCTION tell_tollgate();
CREATE TRIGGER tell_tollgate_replaced AFTER UPDATE ON api_keys
  FOR EACH ROW WHEN (OLD.credential IS DISTINCT FROM NEW.credential) EXECUTE FUNCTION tell_tollgate();

-- Without changes over the admin port, SELECT is enough.
GRANT SELECT, INSERT, UPDATE, DELETE ON api_keys TO gate;
