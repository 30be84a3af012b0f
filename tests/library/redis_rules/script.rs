//! Calls of the script, many of them in one round trip.

use redis::{Connection, Value};
use tollgate::store::redis::Encoded;
use tollgate::store::redis::{BadReply, Bucket, Field, SCRIPT, ScriptReply};

/// The number of calls in one round trip.
const AT_ONCE: usize = 500;

/// A connection on which the script is loaded.
pub(crate) struct Scripted {
    pub(crate) connection: Connection,
    sha1: String,
}

impl Scripted {
    pub(crate) fn new(connection: Connection) -> Self {
        let mut scripted = Self { connection, sha1: String::new() };
        scripted.load();
        scripted
    }

    fn load(&mut self) {
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(&*SCRIPT).query(&mut self.connection);
        self.sha1 = load.expect("the script compiles");
    }

    /// The answer to one call. Loads the script again if Redis has lost it.
    pub(crate) fn call(&mut self, call: &Encoded) -> Value {
        match self.command(call).query(&mut self.connection) {
            Ok(value) => value,
            Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                self.load();
                self.command(call).query(&mut self.connection).expect("a reply")
            }
            Err(error) => panic!("{error} to {call:?}"),
        }
    }

    /// The answers to these calls, in their order.
    pub(crate) fn call_all(&mut self, calls: &[Encoded]) -> Vec<Value> {
        let mut replies = Vec::with_capacity(calls.len());
        for some in calls.chunks(AT_ONCE) {
            let mut pipe = redis::pipe();
            for call in some {
                pipe.add_command(self.command(call));
            }
            let answered: Vec<Value> = pipe.query(&mut self.connection).unwrap_or_else(|error| {
                for call in some {
                    self.call(call);
                }
                panic!("{error}, but not when sent one by one");
            });
            replies.extend(answered);
        }
        replies
    }

    fn command(&self, call: &Encoded) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha1).arg(call.keys.len()).arg(&call.keys).arg(&call.arguments);
        command
    }
}

/// Reads a reply.
pub(crate) fn read(reply: &Value, buckets: &[Bucket<'_>]) -> Result<ScriptReply, BadReply> {
    let Value::Array(fields) = reply else {
        return Err(BadReply::Length { expected: 2 + 2 * buckets.len(), found: 0 });
    };
    let fields: Vec<Field<'_>> = fields
        .iter()
        .map(|field| match field {
            Value::Int(number) => Field::Integer(*number),
            Value::BulkString(bytes) => Field::Text(bytes),
            _ => Field::Other,
        })
        .collect();
    ScriptReply::parse(&fields, buckets)
}
