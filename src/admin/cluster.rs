//! The state of the cluster, for `/status` and the metrics.

use serde_json::{Map, Value, json};

use crate::cluster::members::MemberState;
use crate::cluster::{Cluster, PeerReport, Report};
use crate::telemetry::{Samples, names};
use crate::units::Nanos;

/// The cluster as `/status` shows it at `now`.
pub(super) fn status(cluster: &Cluster, now: Nanos) -> Value {
    let Report {
        own,
        member_state,
        ring,
        members,
        peers,
        asked_under_other_ring,
        decisions: [(_, stood_in), (_, alone), (_, unfetched)],
        states,
        not_found,
        lost,
    } = cluster.report();
    let peers = peers.iter().map(|peer| {
        let PeerReport { address, state, is_reachable, ring: seen, heard, failure, lost } = peer;
        json!({
            "address": address,
            "state": state.as_str(),
            "reachable": is_reachable,
            "failure": failure,
            "ring": seen.map(|ring| ring.to_string()),
            "heard_seconds_ago": (*heard > Nanos::ZERO).then(|| now.saturating_sub(*heard).as_secs_f64()),
            "lost_corrections": lost,
        })
    });
    let standing = match member_state {
        MemberState::Away => "away",
        MemberState::Joining => "joining",
        MemberState::Member => "member",
        MemberState::Leaving => "leaving",
    };
    json!({
        "self": own,
        "standing": standing,
        "ready": cluster.waits_for().is_none(),
        "ring": ring.to_string(),
        "members": members.iter().map(|member| json!({"address": member.address, "weight": member.weight})).collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(),
        "questions_under_another_ring": asked_under_other_ring,
        "decided_standing_in": stood_in,
        "decided_alone": alone,
        "decided_unfetched": unfetched,
        "states": states.map(|(event, count)| (event.to_owned(), count.into())).into_iter().collect::<Map<_, _>>(),
        "discoveries_failed": not_found,
        "lost_corrections": lost,
    })
}

/// Adds the cluster's numbers to the metrics. A cluster's members count in place of those of a store.
pub(super) fn push(report: &Report, samples: &mut Samples) {
    let Report { ring, members, peers, asked_under_other_ring, decisions, states, not_found, lost, .. } = report;
    samples.push_count(&names::CLUSTER_RING_INFO, &[&ring.to_string()], true);
    samples.push_count(&names::CLUSTER_MEMBERS, &[], members.len());
    for peer in peers {
        samples.push_count(&names::PEER_UP, &[&peer.address.to_string()], peer.is_reachable);
    }
    for (cause, total) in decisions {
        samples.push_count(&names::CLUSTER_DECISIONS, &[cause], *total);
    }
    for (event, total) in states {
        samples.push_count(&names::CLUSTER_STATES, &[event], *total);
    }
    for (name, number) in [
        (&names::CLUSTER_DISCOVERY_FAILURES, *not_found),
        (&names::CLUSTER_OTHER_RING, *asked_under_other_ring),
        (&names::CLUSTER_CORRECTIONS_LOST, peers.iter().map(|peer| peer.lost).sum::<u64>().saturating_add(*lost)),
    ] {
        samples.push_count(name, &[], number);
    }
}
