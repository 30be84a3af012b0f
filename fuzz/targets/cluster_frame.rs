//! What another gateway says: read or cut off, and nothing that it asks for breaks the store that it asks.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::cluster::desk::{Desk, Guest};
use tollgate::cluster::wire::{Answer, Ask, Items, LONGEST_FRAME};
use tollgate::store::{LocalStore, Store};
use tollgate::units::Nanos;

const START: Nanos = Nanos::from_secs(1_700_000_000);
const MOST_STEP: u64 = 10_000_000_000;

pub(crate) fn run(data: &[u8]) {
    if data.len() > LONGEST_FRAME {
        return;
    }
    for item in Items::<Answer>::answered(data).flatten() {
        comes_out_as_it_went_in(&item);
    }
    let Some((_, asks)) = Items::<Ask>::asked(data) else { return };
    let store = Arc::new(Store::new(LocalStore::new(), None, None));
    let guest = Arc::clone(&store).receive(1);
    let mut now = START;
    for item in asks.flatten() {
        comes_out_as_it_went_in(&item);
        let (number, ask) = item;
        answer(&store, &*guest, ask, now);
        now = now.saturating_add(Nanos::new(number % MOST_STEP));
    }
    store.release(1, now);
    store.sweep(0, 1, Nanos::MAX);
}

/// However numbers were written, they are written in one way the second time.
fn comes_out_as_it_went_in<T: Serialize + DeserializeOwned>(item: &(u64, T)) {
    let bytes = postcard::to_stdvec(item).unwrap();
    let (again, rest) = postcard::take_from_bytes::<(u64, T)>(&bytes).unwrap();
    assert!(rest.is_empty());
    assert_eq!(postcard::to_stdvec(&again).unwrap(), bytes);
}

fn answer(store: &Arc<Store>, guest: &dyn Guest, ask: Ask, now: Nanos) {
    match ask {
        Ask::Learn { limit, parameters } => guest.learn(&limit, &parameters),
        Ask::Charge { wanted, .. } => {
            let keys: Vec<_> = wanted.iter().map(|wanted| (wanted.rule, wanted.key)).collect();
            let unknown = guest.unknown(&keys);
            assert!(unknown.len() <= wanted.len());
            if let Ok(told) = guest.charge(&wanted, &|position| position % 2 == 1, now) {
                assert_eq!(told.len(), wanted.len());
            }
        }
        Ask::Change { number, change } => drop(guest.change(&change, &|| number % 2 == 1, now)),
        Ask::Beat(_) => {}
        Ask::Spoken => store.release_unheard(&|_| now, now),
        Ask::Take { limit, key } => {
            if let Some(states) = store.take(&limit, key) {
                assert_eq!(states.count, 1);
                assert!(store.take(&limit, key).is_none(), "it is in one place");
                assert_eq!(store.put(&states, now).kept, 1);
            }
        }
        Ask::Put { states, .. } => {
            let received = store.put(&states, now);
            assert!(received.kept + received.merged + received.unknown <= states.count.max(1));
        }
    }
}
