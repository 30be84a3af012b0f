//! Operators' changes of a key: giving tokens back, or resetting the key.

use std::net::SocketAddr;
use std::slice;

use crate::charge::{Charge, DecisionSource, Enforcement};
use crate::store::{Authority, Binding, Receipt, Store};
use crate::units::{Cost, Nanos};

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amendment {
    /// Resets the key, as if the store had never seen it.
    ResetKey,
    /// Gives back at most this many tokens of the last charges (see [`crate::algorithm::Rule::grant`]).
    Grant(Cost),
}

/// The reason why the store did not amend a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmendError {
    /// The limit counts running requests, so there are no tokens to refund.
    #[error("it counts requests in flight: tokens come back only when requests end")]
    Holds,
    /// The key belongs to another gateway.
    #[error("its key belongs to the gateway at {0}: use the admin port of that gateway")]
    Elsewhere(SocketAddr),
    /// Redis keeps the key, and does not answer or refuses.
    #[error("the key is kept in Redis, and calls to it fail; /v1/status says why (`store.servers`)")]
    RedisUnavailable,
    /// The limit's table is full: a key that starts afresh would count in the common bucket.
    #[error("its table is full, and a key that starts afresh counts in the common bucket; raise `max_keys`")]
    TableFull,
}

impl Store {
    /// Asks for the state of the key that `charge` names, and for the decision that `charge` would get. Charges and
    /// leases nothing: this function asks Redis even if this gateway remembers or leases tokens, unless this gateway
    /// counts by itself. `charge` then asks only, and says where.
    pub async fn ask(&self, binding: &Binding, charge: &mut Charge, now: Nanos) -> Receipt {
        charge.enforcement = Enforcement::DRY_RUN;
        if let Authority::Shared(shared, limit) = self.authority(binding, charge)
            && charge.floor == 0
            && let Some(charged) = shared.ask(limit, charge).await
        {
            return Receipt { charged, source: DecisionSource::Store, failed_closed: None };
        }
        self.charge(binding, slice::from_mut(charge), now).await
    }

    /// Checks whether this gateway can amend the key that `charge` names, as far as it knows without asking.
    pub fn check_amendable(&self, binding: &Binding, charge: &Charge) -> Result<(), AmendError> {
        if binding.local.rule(charge).holds_slots() {
            return Err(AmendError::Holds);
        }
        match self.authority(binding, charge) {
            Authority::Shared(shared, limit) => shared.check_amendable(limit, charge),
            Authority::Owned(owners, _) if !owners.cluster.owns(charge.key) => {
                Err(AmendError::Elsewhere(owners.cluster.owner(charge.key)))
            }
            Authority::Local | Authority::Owned(..) => Ok(()),
        }
    }

    /// Amends the key that `charge` names; the charge's cost does not matter.
    ///
    /// For a limit that gateways share, this gateway also forgets what it remembers of the key; other gateways do not.
    pub async fn amend(
        &self,
        binding: &Binding,
        charge: &Charge,
        amendment: Amendment,
        now: Nanos,
    ) -> Result<(), AmendError> {
        let asks = charge.dry_run();
        self.check_amendable(binding, &asks)?;
        match self.authority(binding, &asks) {
            Authority::Shared(shared, limit) => shared.amend(limit, &asks, amendment).await,
            Authority::Local | Authority::Owned(..) => {
                let _fetches = match self.cluster().filter(|cluster| cluster.is_migrating()) {
                    Some(cluster) => self.fetch_states(cluster, binding, slice::from_ref(&asks)).await,
                    None => Vec::new(),
                };
                self.local.amend(&binding.local, &asks, amendment, now)
            }
        }
    }
}
