//! `tollgate keys`: reads the state of a key in a running gateway, and corrects it.

use std::error::Error;
use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::cli::explain::HeaderField;
use crate::cli::remote::{Remote, RemoteArgs, TokenArgs};
use crate::cli::{Format, print};
use crate::gateway::explain::RequestJson;
use crate::gateway::keys::KeyQuestionJson;

/// The arguments of `tollgate keys`. No `Debug`: header fields and the URL may hold credentials.
#[derive(Args, Clone)]
pub struct KeysArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone)]
enum Command {
    /// Show the state of a key, without charging it
    Peek(PeekArgs),
    /// Reset a key, as if the gateway had never seen it
    Reset(ResetArgs),
    /// Give charged tokens back to a key
    ///
    /// How many tokens can be given back depends on the limit's algorithm: never more than were charged, and none that have
    /// been refilled since.
    Grant(GrantArgs),
    /// Lift the ban of a key on this gateway
    Unban(ResetArgs),
}

#[derive(Args, Clone)]
struct PeekArgs {
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Args, Clone)]
struct ResetArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    token: TokenArgs,
}

#[derive(Args, Clone)]
struct GrantArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// The number of tokens to give back at most
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    tokens: i64,
    #[command(flatten)]
    token: TokenArgs,
}

/// The options that name a key.
#[derive(Args, Clone)]
struct KeyArgs {
    /// The limit of the key
    #[arg(long, value_name = "NAME")]
    limit: String,
    /// The parts of the key, like `customer=acme` or `header:x-user=bob`; none if the limit has one bucket for all requests
    #[arg(value_name = "PART=VALUE", value_parser = part, conflicts_with = "url")]
    parts: Vec<PartArgument>,
    /// The plan whose parameters apply, if the key does not determine it
    #[arg(long, value_name = "PLAN", conflicts_with = "url")]
    plan: Option<String>,
    /// The URL of a request that the limit applies to; names the key instead of parts
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The method of that request
    #[arg(short = 'X', long, value_name = "METHOD", requires = "url")]
    method: Option<String>,
    /// A header field of that request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = crate::cli::explain::field, requires = "url")]
    headers: Vec<HeaderField>,
    /// The source address of that request
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    client: Option<std::net::IpAddr>,
    /// The output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// An argument `PART=VALUE`.
#[derive(Clone)]
struct PartArgument(String, String);

fn part(text: &str) -> Result<PartArgument, &'static str> {
    let (name, value) = text.split_once('=').ok_or("a part of a key is written `part=value`")?;
    Ok(PartArgument(name.to_owned(), value.to_owned()))
}

/// Sends the request to the gateway, and prints the response.
pub fn execute(args: &KeysArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let (verb, key, token, tokens) = match &args.command {
        Command::Peek(PeekArgs { key }) => ("peek", key, None, None),
        Command::Reset(ResetArgs { key, token }) => ("reset", key, Some(token.read()?), None),
        Command::Unban(ResetArgs { key, token }) => ("unban", key, Some(token.read()?), None),
        Command::Grant(GrantArgs { key, tokens, token }) => ("grant", key, Some(token.read()?), Some(*tokens)),
    };
    let question = json!(KeyQuestionJson { tokens, ..key.question()? });
    let answer = Remote::new(&key.remote, token).post(&format!("/v1/keys/{verb}"), &question)?;
    let printed = match key.format {
        Format::Json => format!("{answer:#}\n"),
        Format::Text => text(&answer),
    };
    Ok(print(out, &printed)?)
}

impl KeyArgs {
    fn question(&self) -> Result<KeyQuestionJson, String> {
        let (limit, plan) = (self.limit.clone(), self.plan.clone());
        let (key, request) = match &self.url {
            None => {
                let mut key = Map::new();
                for PartArgument(name, value) in &self.parts {
                    if key.insert(name.clone(), json!(value)).is_some() {
                        return Err(format!("the part {name:?} of the key is given twice"));
                    }
                }
                (Value::Object(key), Value::Null)
            }
            Some(url) => {
                let fields =
                    self.headers.iter().map(|HeaderField(name, value)| (name.trim().into(), value.trim().into()));
                let method = self.method.as_deref().unwrap_or("GET");
                (Value::Null, json!(RequestJson::new(method, url, fields, self.client)))
            }
        };
        Ok(KeyQuestionJson { limit, key, plan, request, tokens: None })
    }
}

fn text(answer: &Value) -> String {
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parts = answer["key"].as_array().into_iter().flatten();
    let key: Vec<String> = parts.map(|part| format!("{} = {}", of(&part["part"]), of(&part["value"]))).collect();
    let key = if key.is_empty() { "one bucket for all".to_owned() } else { key.join(", ") };
    let plan = answer["plan"].as_str().map(|plan| format!(", plan {plan}")).unwrap_or_default();
    let mut lines = vec![
        format!(
            "limit {} ({}, {}): {}{plan}",
            of(&answer["limit"]),
            of(&answer["algorithm"]),
            of(&answer["mode"]),
            of(&answer["terms"])
        ),
        format!("  key: {key}"),
    ];
    if answer["before"].is_object() {
        lines.push(format!("  before: {}", standing(&answer["before"])));
    }
    if let Some(left) = answer["banned_for_seconds"].as_f64() {
        lines.push(format!("  banned: every request is denied for {left:.3} s"));
    }
    lines.extend(match answer["refused"].as_str() {
        Some("suspended") => Some("  refused: the customer or the group is suspended".to_owned()),
        Some(_) => Some("  refused: every key of the customer has ended".to_owned()),
        None => None,
    });
    let now = &answer["standing"];
    lines.push(match now["more_in_seconds"].is_null() {
        true => "  now: nobody knows while Redis is unavailable".to_owned(),
        false => format!("  now: {} (known from: {})", standing(now), of(&answer["decided"])),
    });
    lines.join("\n") + "\n"
}

/// The state of a key, in words.
fn standing(now: &Value) -> String {
    let seconds = |field: &str| now[field].as_f64();
    let mut words = vec![match now["remaining"].as_u64() {
        Some(left) => format!("{left} left"),
        None => format!("the next request would be {}", now["decision"].as_str().unwrap_or_default()),
    }];
    if let Some(wait) = seconds("wait_seconds") {
        words.push(format!("the next request would wait {wait:.3} s"));
    }
    if let Some(after) = seconds("retry_after_seconds") {
        words.push(format!("denied for {after:.3} s"));
    }
    match seconds("full_in_seconds") {
        Some(full) if full > 0.0 => words.push(format!("full again in {full:.3} s")),
        Some(_) => words.push("nothing is used".to_owned()),
        None => words.push("comes back when requests end".to_owned()),
    }
    words.join(", ")
}
