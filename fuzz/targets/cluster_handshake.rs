//! Handshakes and frames between gateways: nobody is believed who does not know the secret, and no frame that was changed.

use std::net::SocketAddr;

use tollgate::cluster::Secret;
use tollgate::cluster::handshake::{Hello, Proof, Role, Seal, Transcript, check_compatible};
use tollgate::cluster::wire::{MAX_FRAME_BYTES, OLDEST, VERSION};

use super::input::Input;

pub(crate) fn run(data: &[u8]) {
    let secret = Secret::of(b"what all gateways know");
    let address = |last: u8| SocketAddr::from(([127, 0, 0, last], 7946));
    let own = Hello { version: VERSION, nonce: [7; 32], process: 7, from: address(1), to: address(2) };
    let read: Result<(Hello, Proof), _> = postcard::from_bytes(data);
    if let Ok((theirs, proof)) = read {
        let agreed = check_compatible(&own, &theirs);
        assert!(agreed.is_err() || (theirs.version >= OLDEST && theirs.process != 7 && theirs.to == own.from));
        let transcript = Transcript::new(&secret, &theirs, &own);
        for role in [Role::Initiator, Role::Acceptor] {
            assert!(transcript.check(role, &proof).is_err(), "who does not know the secret is not believed");
            assert!(transcript.check(role, &transcript.proof(role)).is_ok());
        }
        let other = Secret::of(b"what others know");
        let elsewhere = Transcript::new(&other, &theirs, &own);
        assert!(transcript.check(Role::Initiator, &elsewhere.proof(Role::Initiator)).is_err());
    }
    frames(&Transcript::new(&secret, &own, &own), data);
}

fn frames(transcript: &Transcript<'_>, data: &[u8]) {
    let mut input = Input(data);
    let (at, flip) = (usize::from(input.byte()), 1 << (input.byte() % 8));
    let split = |frame: &[u8]| {
        let (length, rest) = frame.split_first_chunk().map(|(length, rest)| (*length, rest.to_vec())).unwrap();
        assert_eq!(Seal::length(length), Ok(rest.len()));
        (length, rest)
    };
    let (mut sent, mut received) = (transcript.seal(Role::Initiator), transcript.seal(Role::Initiator));
    let mut bytes = Vec::new();
    sent.close(input.0, &mut bytes).unwrap();
    let (length, mut rest) = split(&bytes);
    let mut changed = rest.clone();
    let place = at % changed.len();
    changed[place] ^= flip;
    assert!(transcript.seal(Role::Initiator).open(length, &mut changed).is_err());
    assert!(transcript.seal(Role::Acceptor).open(length, &mut rest.clone()).is_err());
    assert_eq!(received.open(length, &mut rest), Ok(input.0));
    assert!(received.open(length, &mut split(&bytes).1).is_err(), "a frame is taken once");
    // bytes of a stranger
    if let Some((length, rest)) = data.split_first_chunk()
        && let Ok(length_said) = Seal::length(*length)
    {
        assert!(length_said <= MAX_FRAME_BYTES);
        let taken = length_said.min(rest.len());
        assert!(transcript.seal(Role::Initiator).open(*length, &mut rest[..taken].to_vec()).is_err());
    }
}
