//! The handshake that authenticates two gateways to each other, and the encryption of the frames that follow.
//!
//! Four messages: each side sends its version, a nonce, its process, its own address and the other side's address; then
//! the connecting side proves that it knows the secret, and then the other side does. A proof is an HMAC-SHA-256 over
//! both first messages and the prover's role, under a key derived from the secret. So neither a proof of an earlier
//! handshake nor the receiver's own proof is valid. Each frame that follows is sealed with AES-256-GCM under its number
//! and a key of this connection (HKDF-SHA-256, one key per direction): an inserted, missing, changed or repeated frame
//! closes the connection.

use std::net::SocketAddr;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use serde::{Deserialize, Serialize};

use super::wire::{MAX_FRAME_BYTES, OLDEST, VERSION};

/// The secret that only the gateways of one cluster know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    proofs: [u8; 32],
    keys: [u8; 16],
}

impl Secret {
    /// Derives the keys from a text of any length; they are as hard to guess as the text.
    pub fn of(text: &[u8]) -> Self {
        let made = |purpose: &str| sign(&Key::new(HMAC_SHA256, text), purpose.as_bytes());
        let (proofs, keys) = (made("tollgate cluster: proofs"), made("tollgate cluster: names of keys"));
        Self { proofs: first_bytes(proofs.as_ref()), keys: first_bytes(keys.as_ref()) }
    }

    /// The seed with which gateways hash keys, the same for all gateways that know the secret.
    pub const fn key_seed(&self) -> &[u8; 16] {
        &self.keys
    }
}

/// The side of a connection that a gateway has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Initiator,
    /// The side that accepted the connection.
    Acceptor,
}

/// The first message of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's newest version of the protocol.
    pub version: u8,
    /// A random number that is never used twice.
    pub nonce: [u8; 32],
    /// Identifies the sender's process, unlike those before and after it.
    pub process: u64,
    /// The sender's address in the cluster.
    pub from: SocketAddr,
    /// The other side's address in the cluster, as far as the sender knows.
    pub to: SocketAddr,
}

/// The most bytes of a handshake message, before the connection is sealed.
pub const MAX_MESSAGE_BYTES: usize = 256;

/// Why a gateway refuses the other one. It is sent as the variant's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HandshakeError {
    /// The other side is another program, or a version of this one that is too old.
    #[error(
        "the two gateways have no common version of the cluster's protocol (this gateway is at {VERSION}); upgrade the older one"
    )]
    Version,
    /// The proof is wrong.
    #[error("it does not know the cluster's secret; give all gateways the same `cluster.secret_file`")]
    Secret,
    /// The connection has reached another gateway than the intended one.
    #[error(
        "the connection reached another gateway than intended; name each gateway by the same address in all `cluster.peers`"
    )]
    Address,
    /// A gateway has connected to itself.
    #[error("it is this gateway itself; `cluster.peers` names it by two addresses")]
    Oneself,
}

/// The second message of a side.
#[derive(Debug, Serialize, Deserialize)]
pub enum Proof {
    /// The sender knows the secret.
    Tag([u8; 32]),
    /// The sender refuses the connection.
    Refused(HandshakeError),
}

/// The hash of both first messages, on which proofs and keys depend.
pub struct Transcript<'a> {
    secret: &'a Secret,
    hash: [u8; 32],
}

impl<'a> Transcript<'a> {
    /// The transcript of both first messages, exactly as they were sent.
    pub fn new(secret: &'a Secret, asker: &Hello, owner: &Hello) -> Self {
        let bytes = postcard::to_stdvec(&(asker, owner)).expect("numbers and addresses can be written");
        Self { secret, hash: first_bytes(digest(&SHA256, &bytes).as_ref()) }
    }

    /// The proof by the side `role` that it knows the secret.
    pub fn proof(&self, role: Role) -> Proof {
        Proof::Tag(first_bytes(sign(&self.key(), &self.text(role)).as_ref()))
    }

    /// Checks the proof of the side `role`. The time that this takes does not depend on where a wrong proof differs.
    pub fn check(&self, role: Role, proof: &Proof) -> Result<(), HandshakeError> {
        match proof {
            Proof::Tag(tag) => verify(&self.key(), &self.text(role), tag).map_err(|_| HandshakeError::Secret),
            Proof::Refused(refusal) => Err(*refusal),
        }
    }

    /// The seal for all frames that the side `role` sends.
    pub fn seal(&self, role: Role) -> Seal {
        let salt = Salt::new(HKDF_SHA256, &self.hash);
        let made = salt.extract(&self.secret.proofs);
        let info = [role.label()];
        let key = made.expand(&info, &AES_256_GCM).map(UnboundKey::from);
        let key = key.expect("HKDF-SHA-256 makes keys of 32 bytes");
        Seal { key: LessSafeKey::new(key), next: 0 }
    }

    fn key(&self) -> Key {
        Key::new(HMAC_SHA256, &self.secret.proofs)
    }

    fn text(&self, role: Role) -> Vec<u8> {
        [role.label(), &self.hash].concat()
    }
}

impl Role {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Initiator => b"tollgate cluster: asker",
            Self::Acceptor => b"tollgate cluster: owner",
        }
    }
}

fn first_bytes<const COUNT: usize>(hash: &[u8]) -> [u8; COUNT] {
    *hash.first_chunk().expect("SHA-256 makes 32 bytes, and no key here is longer")
}

/// Checks that the sender of `own` can talk to that of `theirs`: version, different processes, and matching addresses.
pub fn check_compatible(own: &Hello, theirs: &Hello) -> Result<(), HandshakeError> {
    // a newer side has to decide itself whether it speaks this version
    if theirs.version < OLDEST {
        return Err(HandshakeError::Version);
    }
    if theirs.process == own.process {
        return Err(HandshakeError::Oneself);
    }
    if theirs.to != own.from || theirs.from != own.to {
        return Err(HandshakeError::Address);
    }
    Ok(())
}

// === frames ===

/// The encryption of one direction of a connection.
pub struct Seal {
    key: LessSafeKey,
    /// The number of frames so far, which is the next frame's number.
    next: u64,
}

/// The error of a frame that is too long or that is not the next one from the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame is too long or failed authentication")]
pub struct FrameError;

/// The bytes that a frame has besides its content: its length and its tag.
const LENGTH: usize = 4;
const TAG: usize = 16;

impl Seal {
    /// Appends a sealed frame with the content `text` to `out`.
    pub fn close(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
        let sealed = text.len().saturating_add(TAG);
        let length = u32::try_from(sealed).ok().filter(|_| sealed <= MAX_FRAME_BYTES).ok_or(FrameError)?.to_le_bytes();
        let nonce = self.nonce()?;
        out.extend_from_slice(&length);
        let start = out.len();
        out.extend_from_slice(text);
        let (_, open) = out.split_at_mut(start);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(length), open).map_err(|_| FrameError)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts the frame that follows `length` and returns its content.
    pub fn open<'f>(&mut self, length: [u8; LENGTH], frame: &'f mut [u8]) -> Result<&'f [u8], FrameError> {
        let nonce = self.nonce()?;
        self.key.open_in_place(nonce, Aad::from(length), frame).map(|text| &*text).map_err(|_| FrameError)
    }

    /// The number of bytes that follow the length of a frame.
    pub fn length(length: [u8; LENGTH]) -> Result<usize, FrameError> {
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| FrameError)?;
        if (TAG..=MAX_FRAME_BYTES).contains(&length) { Ok(length) } else { Err(FrameError) }
    }

    fn nonce(&mut self) -> Result<Nonce, FrameError> {
        let mut nonce = [0; NONCE_LEN];
        nonce.iter_mut().zip(self.next.to_le_bytes()).for_each(|(byte, count)| *byte = count);
        self.next = self.next.checked_add(1).ok_or(FrameError)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(process: u64, from: u8, to: u8) -> Hello {
        let address = |last: u8| SocketAddr::from(([127, 0, 0, last], 7946));
        let nonce = [u8::try_from(process % 256).unwrap(); 32];
        Hello { version: VERSION, nonce, process, from: address(from), to: address(to) }
    }

    fn both() -> (Hello, Hello) {
        (hello(1, 1, 2), hello(2, 2, 1))
    }

    #[test]
    fn a_gateway_that_knows_the_secret_is_believed_and_no_other() {
        let (asker, owner) = both();
        let secrets = [Secret::of(b"one secret of a cluster"), Secret::of(b"another secret")];
        let [known, other] = secrets.each_ref().map(|secret| Transcript::new(secret, &asker, &owner));
        for role in [Role::Initiator, Role::Acceptor] {
            assert_eq!(known.check(role, &known.proof(role)), Ok(()));
            assert_eq!(known.check(role, &other.proof(role)), Err(HandshakeError::Secret));
        }
        // a gateway's own proof is not valid as the other side's
        assert_eq!(known.check(Role::Acceptor, &known.proof(Role::Initiator)), Err(HandshakeError::Secret));
        // nor is a proof from another handshake
        let later = Hello { nonce: [9; 32], ..owner };
        let replayed = Transcript::new(&secrets[0], &asker, &later);
        assert_eq!(replayed.check(Role::Initiator, &known.proof(Role::Initiator)), Err(HandshakeError::Secret));
    }

    #[test]
    fn gateways_that_take_each_other_for_others_do_not_talk() {
        let (asker, owner) = both();
        assert_eq!(check_compatible(&owner, &asker), Ok(()));
        assert_eq!(check_compatible(&owner, &Hello { version: OLDEST - 1, ..asker }), Err(HandshakeError::Version));
        assert_eq!(check_compatible(&owner, &Hello { version: VERSION + 1, ..asker }), Ok(()));
        assert_eq!(check_compatible(&owner, &Hello { to: asker.from, ..asker }), Err(HandshakeError::Address));
        assert_eq!(check_compatible(&owner, &Hello { process: owner.process, ..asker }), Err(HandshakeError::Oneself));
    }

    #[test]
    fn frames_that_are_changed_repeated_or_left_out_are_found() {
        let (asker, owner) = both();
        let secret = Secret::of(b"one secret of a cluster");
        let transcript = Transcript::new(&secret, &asker, &owner);
        let mut sent = transcript.seal(Role::Initiator);
        let frames: Vec<Vec<u8>> = [b"first", b"other"]
            .iter()
            .map(|text| {
                let mut frame = Vec::new();
                sent.close(*text, &mut frame).unwrap();
                frame
            })
            .collect();
        let open = |seal: &mut Seal, frame: &[u8]| {
            let (length, rest) = frame.split_first_chunk().unwrap();
            let mut rest = rest.to_vec();
            seal.open(*length, &mut rest).map(<[u8]>::to_vec)
        };
        let fresh = || transcript.seal(Role::Initiator);
        let mut in_order = fresh();
        assert_eq!(open(&mut in_order, &frames[0]), Ok(b"first".to_vec()));
        assert_eq!(open(&mut in_order, &frames[1]), Ok(b"other".to_vec()));
        assert_eq!(open(&mut in_order, &frames[1]), Err(FrameError));
        assert_eq!(open(&mut fresh(), &frames[1]), Err(FrameError));
        assert_eq!(open(&mut transcript.seal(Role::Acceptor), &frames[0]), Err(FrameError));
        let mut changed = frames[0].clone();
        changed[6] ^= 1;
        assert_eq!(open(&mut fresh(), &changed), Err(FrameError));
    }

    #[test]
    fn a_message_longer_than_a_frame_is_neither_sent_nor_read() {
        let (asker, owner) = both();
        let secret = Secret::of(b"one secret of a cluster");
        let mut seal = Transcript::new(&secret, &asker, &owner).seal(Role::Initiator);
        assert_eq!(seal.close(&vec![0; MAX_FRAME_BYTES], &mut Vec::new()), Err(FrameError));
        assert_eq!(Seal::length(u32::MAX.to_le_bytes()), Err(FrameError));
        assert_eq!(Seal::length(3_u32.to_le_bytes()), Err(FrameError));
        assert_eq!(Seal::length(16_u32.to_le_bytes()), Ok(16));
    }
}
