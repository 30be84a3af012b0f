//! Several gateways whose sticky limits are one: each key has one owner among them, and the others ask it.
//!
//! A gateway that is asked for something decides by itself where it owns all of a request's keys, and otherwise asks their
//! owners over connections that the gateways keep to each other ([`handshake`], [`wire`]). Requests themselves are never
//! sent on: what moves is a decision, some tens of bytes each way.
//!
//! Who owns a key ([`ring`]) follows from who is a member ([`members`]) and from the key's upper bits, its *home*
//! ([`home`]), which all keys of one customer have in common. Keys and the states behind them are names without meaning to
//! this module; who keeps them comes in as a [`serve::Desk`].

mod connection;
pub mod handshake;
pub mod members;
pub mod peer;
pub mod ring;
mod session;
pub mod wire;

use crate::units::LimitKey;

/// What decides who owns a key: the same for all keys of a customer.
pub const fn home(key: LimitKey) -> u32 {
    let [a, b, c, d, ..] = key.0.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
