//! What is in force: one immutable value behind one pointer, which a reload swaps.

use std::sync::Arc;

use crate::customers::Directory;
use crate::proxy::queue::Queue;
use crate::proxy::upstream::Pool;
use crate::ruleset::Ruleset;
use crate::store::{Binding, LimitSpec, Store};
use crate::telemetry::Telemetry;
use crate::telemetry::meters::Meters;
use crate::telemetry::names;

/// A ruleset with everything that belongs to it. A request holds one from start to end; it is never modified.
#[derive(Debug)]
pub struct Live {
    /// The compiled configuration.
    pub ruleset: Ruleset,
    /// Who the customers are.
    pub directory: Directory,
    /// The limits as the store knows them.
    pub binding: Binding,
    /// What requests count on.
    pub meters: Meters,
    /// The nodes of each upstream, indexed like the ruleset's upstreams.
    pub pools: Vec<Arc<Pool>>,
    /// Who waits under each limit, indexed like the ruleset's limits.
    pub queues: Vec<Arc<Queue>>,
    /// Identifies the configuration's text.
    pub hash: String,
}

impl Live {
    /// Puts a ruleset together with the store and the metrics.
    pub fn new(ruleset: Ruleset, directory: Directory, hash: String, store: &Store, telemetry: &Telemetry) -> Self {
        let specs: Vec<LimitSpec<'_>> = ruleset
            .limits
            .iter()
            .map(|limit| LimitSpec {
                name: &limit.name,
                algorithm: limit.algorithm,
                rules: &limit.rules,
                max_keys: limit.max_keys,
            })
            .collect();
        let binding = store.bind(&specs);
        if let Directory::Redis(asked) = &directory {
            let telemetry = telemetry.clone();
            asked.observe(Box::new(move |result, took| {
                telemetry.store_called(names::OP_CUSTOMER, result.as_str(), took);
            }));
        }
        let meters = Meters::new(telemetry, &ruleset);
        let pools = ruleset.upstreams.iter().map(|upstream| Arc::new(Pool::new(upstream.clone()))).collect();
        let queues = ruleset.limits.iter().map(|limit| Arc::new(Queue::new(&limit.over_limit))).collect();
        Self { queues, ruleset, directory, binding, meters, pools, hash }
    }
}
