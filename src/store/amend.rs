//! Amends a key for an operator: gives tokens back, or resets the key.

use std::net::SocketAddr;

use crate::charge::{Charge, DecisionSource, Enforcement};
use crate::store::{Binding, Receipt, Store};
use crate::units::{Cost, Nanos};

/// How a key is amended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amendment {
    /// It is as if it had never been seen.
    Afresh,
    /// Up to so many tokens of what was charged last are given back (see [`crate::algorithm::Rule::grant`]).
    Grant(Cost),
}

/// Why a key was not amended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unamended {
    /// What is counted is what runs.
    #[error("it counts what runs: what is taken comes back when requests end, and not otherwise")]
    Holds,
    /// The key belongs to another gateway.
    #[error("its key belongs to the gateway at {0}: ask the admin port of that one")]
    Elsewhere(SocketAddr),
    /// It is kept in Redis, which does not answer.
    #[error("it is kept in Redis, which does not answer; try again when Redis answers")]
    Away,
}

impl Store {
    /// Where the key that `charge` names stands, and what would become of `charge`. Takes nothing, not even ahead: Redis
    /// is asked whatever this node remembers or holds, unless this node counts by itself.
    pub async fn ask(&self, binding: &Binding, charge: &Charge, now: Nanos) -> Receipt {
        let mut asks = [Charge { enforcement: Enforcement::ASKS, ..charge.clone() }];
        let [ask] = &asks;
        if let (Some(shared), Some(limit)) = (&self.shared, binding.shared(ask))
            && ask.floor == 0
            && let Some(charged) = shared.ask(limit, ask).await
        {
            return Receipt { charged, source: DecisionSource::Store, refused: None };
        }
        self.charge(binding, &mut asks, now).await
    }

    /// Does something to the key that `charge` names, whatever the charge's cost.
    ///
    /// Of a limit that nodes share, what this node remembers of the key is forgotten too; what other nodes remember of it
    /// is not.
    pub async fn amend(
        &self,
        binding: &Binding,
        charge: &Charge,
        amendment: Amendment,
        now: Nanos,
    ) -> Result<(), Unamended> {
        let asks = Charge { enforcement: Enforcement::ASKS, ..charge.clone() };
        if binding.local.rule(&asks).holds() {
            return Err(Unamended::Holds);
        }
        match (&self.shared, binding.shared(&asks)) {
            (Some(shared), Some(limit)) => shared.amend(limit, &asks, amendment).await,
            _ => {
                let owner = self.owner(binding, &asks).filter(|_| !self.is_here(binding, &asks));
                if let Some(owner) = owner {
                    return Err(Unamended::Elsewhere(owner));
                }
                let _fetches = match self.cluster().filter(|cluster| cluster.is_migrating()) {
                    Some(cluster) => self.gather(cluster, binding, std::slice::from_ref(&asks)).await,
                    None => Vec::new(),
                };
                self.local.amend(&binding.local, &asks, amendment, now);
                Ok(())
            }
        }
    }
}
