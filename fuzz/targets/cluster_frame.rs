//! What another gateway says: read or cut off, and nothing that it asks for breaks the store that it asks.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::cluster::state_service::{PeerSession, StateService};
use tollgate::cluster::wire::{Answer, Ask, Items, MAX_FRAME_BYTES};
use tollgate::store::{LocalStore, Store};
use tollgate::units::Nanos;

const START: Nanos = Nanos::from_secs(1_700_000_000);
const MAX_STEP: u64 = 10_000_000_000;

pub(crate) fn run(data: &[u8]) {
    if data.len() > MAX_FRAME_BYTES {
        return;
    }
    for item in Items::<Answer>::answered(data).flatten() {
        comes_out_as_it_went_in(&item);
    }
    let Some((_, asks)) = Items::<Ask>::asked(data) else { return };
    let store = Arc::new(Store::new(LocalStore::new(), None, None));
    let session = Arc::clone(&store).open_session(1);
    let mut now = START;
    for item in asks.flatten() {
        comes_out_as_it_went_in(&item);
        let (number, ask) = item;
        answer(&store, &*session, ask, now);
        now = now.saturating_add(Nanos::new(number % MAX_STEP));
    }
    store.release_process(1, now);
    store.sweep(0, 1, Nanos::MAX);
}

/// However numbers were written, they are written in one way the second time.
fn comes_out_as_it_went_in<T: Serialize + DeserializeOwned>(item: &(u64, T)) {
    let bytes = postcard::to_stdvec(item).unwrap();
    let (again, rest) = postcard::take_from_bytes::<(u64, T)>(&bytes).unwrap();
    assert!(rest.is_empty());
    assert_eq!(postcard::to_stdvec(&again).unwrap(), bytes);
}

fn answer(store: &Arc<Store>, session: &dyn PeerSession, ask: Ask, now: Nanos) {
    match ask {
        Ask::Learn { limit, parameters } => session.learn(&limit, &parameters),
        Ask::Charge { wanted, .. } => {
            assert!(session.unknown(&wanted).len() <= wanted.len());
            if let Ok(replies) = session.charge(&wanted, &|position| position % 2 == 1, now) {
                assert_eq!(replies.len(), wanted.len());
            }
        }
        Ask::Change { number, change } => drop(session.change(&change, &|| number % 2 == 1, now)),
        Ask::Heartbeat(_) => {}
        Ask::SlotsAnnounced => store.release_stale_slots(&|_| now, now),
        Ask::Take { limit, key } => {
            if let Some(states) = store.take(&limit, key, &|| {}) {
                assert_eq!(states.count, 1);
                assert!(store.take(&limit, key, &|| {}).is_none(), "it is in one place");
                assert_eq!(store.put(&states, now).kept, 1);
            }
        }
        Ask::Put { states, .. } => {
            let received = store.put(&states, now);
            assert!(received.kept + received.merged + received.unknown <= states.count.max(1));
        }
    }
}
