use proptest::prelude::*;

use super::*;

fn member(number: usize) -> Member {
    Member { address: SocketAddr::from(([10, 0, 0, u8::try_from(number).unwrap()], 7946)), weight: 1 }
}

/// A set of gateways that hear each other, on one clock.
struct Net {
    founding: Founding,
    now: Nanos,
    nodes: Vec<Node>,
    lives: u64,
}

struct Node {
    members: Members,
    runs: Runs,
    gives_away: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Yes,
    /// Its connections stay open, but nothing arrives over them.
    Stopped,
    No,
}

impl Net {
    /// A net of `count` gateways, none of which runs.
    fn new(count: usize) -> Self {
        let node = |number| Node {
            members: Members::new(member(number), Founding::default(), 0, Nanos::ZERO),
            runs: Runs::No,
            gives_away: true,
        };
        let founding = Founding::default();
        Self { founding, now: Nanos::from_secs(1000), nodes: (0..count).map(node).collect(), lives: 0 }
    }

    /// A net of `count` gateways that started together.
    fn running(count: usize) -> Self {
        let mut net = Self::new(count);
        (0..count).for_each(|number| net.start(number));
        net.beats(8);
        net.all_see((0..count).collect());
        net
    }

    fn start(&mut self, number: usize) {
        self.lives += 1_000;
        let listed: Vec<Member> = (0..self.nodes.len()).map(member).collect();
        let node = &mut self.nodes[number];
        node.members = Members::new(member(number), self.founding, self.lives, self.now);
        node.members.set_listed(&listed, self.now);
        node.runs = Runs::Yes;
    }

    /// Advances the time by `count` heartbeats, in which all gateways hear all running gateways.
    fn beats(&mut self, count: usize) {
        for _ in 0..count {
            self.now = self.now.saturating_add(HEARTBEAT_INTERVAL);
            self.beat();
        }
    }

    fn beat(&mut self) {
        for from in 0..self.nodes.len() {
            if self.nodes[from].runs != Runs::Yes {
                continue;
            }
            self.nodes[from].members.tick(self.now);
            self.give_away(from);
            for to in (0..self.nodes.len()).filter(|to| *to != from) {
                let (at, now) = (member(from).address, self.now);
                match self.nodes[to].runs {
                    Runs::Yes => {
                        let beat = self.nodes[from].members.heartbeat_for(member(to).address);
                        self.nodes[to].members.record_heartbeat(at, beat, now);
                        self.give_away(to);
                    }
                    Runs::Stopped => {}
                    Runs::No => self.nodes[from].members.unreachable(member(to).address, now),
                }
            }
        }
    }

    fn give_away(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if node.gives_away {
            let ring = node.members.ring().hash();
            let before = node.members.undrained_count();
            node.members.set_drained(ring, before, self.now);
        }
    }

    fn sees(&self, number: usize) -> Vec<usize> {
        let ring = self.nodes[number].members.ring();
        (0..self.nodes.len()).filter(|other| ring.has(member(*other).address)).collect()
    }

    /// Asserts that all running gateways see exactly the gateways `expected` as members.
    #[track_caller]
    fn all_see(&self, expected: Vec<usize>) {
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.runs == Runs::Yes) {
            assert_eq!(self.sees(number), expected, "as {number} sees them: {node:?}", node = node.members);
        }
    }
}

#[test]
fn nodes_that_start_together_are_members_at_once() {
    let mut net = Net::new(3);
    (0..3).for_each(|number| net.start(number));
    net.beats(2);
    net.all_see(vec![0, 1, 2]);
}

#[test]
fn a_node_without_peers_is_a_member() {
    let mut net = Net::new(1);
    net.start(0);
    assert_eq!(net.nodes[0].members.member_state(), MemberState::Member);
}

#[test]
fn a_node_whose_peers_cannot_be_reached_is_a_member_alone() {
    let mut net = Net::new(3);
    net.start(0);
    net.beats(1);
    assert_eq!(net.nodes[0].members.member_state(), MemberState::Member);
    net.all_see(vec![0]);
}

#[test]
fn a_node_is_ready_once_there_are_enough_members_and_stays_so() {
    let mut net = Net { founding: Founding { min_members: 2, hold: Nanos::ZERO }, ..Net::new(3) };
    let is_ready = |net: &Net, number: usize| net.nodes[number].members.is_ready();
    net.start(0);
    net.beats(40);
    assert!(!is_ready(&net, 0));
    assert_eq!((net.nodes[0].members.member_state(), net.nodes[0].members.waits_for()), (MemberState::Joining, (1, 2)));
    net.start(1);
    net.beats(2);
    net.all_see(vec![0, 1]);
    assert!(is_ready(&net, 0) && is_ready(&net, 1));
    net.nodes[1].runs = Runs::No;
    net.beats(2);
    net.all_see(vec![0]);
    assert!(is_ready(&net, 0));
    // one of the two other gateways that there could be has failed
    net.start(2);
    net.beats(2);
    assert!(is_ready(&net, 2));
}

/// DNS may return only this gateway because the others are not registered yet.
#[test]
fn a_node_that_knows_of_no_other_is_held_for_a_while() {
    let hold = Nanos::from_secs(10);
    let mut net = Net { founding: Founding { min_members: 1, hold }, ..Net::new(1) };
    net.start(0);
    net.beats(39);
    assert!(!net.nodes[0].members.is_ready());
    net.beats(1);
    assert!(net.nodes[0].members.is_ready());
    // a gateway that finds another one does not wait
    let mut net = Net { founding: Founding { min_members: 1, hold }, ..Net::new(2) };
    (0..2).for_each(|number| net.start(number));
    net.beats(2);
    net.all_see(vec![0, 1]);
    assert!(net.nodes.iter().all(|node| node.members.is_ready()));
}

#[test]
fn a_node_waits_a_while_for_peers_that_say_nothing() {
    let mut net = Net::new(2);
    net.nodes[1].runs = Runs::Stopped;
    net.start(0);
    net.beats(3);
    assert_eq!(net.nodes[0].members.member_state(), MemberState::Joining);
    net.beats(1);
    assert_eq!(net.nodes[0].members.member_state(), MemberState::Member);
}

#[test]
fn a_node_that_comes_asks_the_members_until_they_have_taken_it_up() {
    let mut net = Net::new(4);
    (0..3).for_each(|number| net.start(number));
    net.beats(8);
    net.all_see(vec![0, 1, 2]);
    net.start(3);
    net.beats(1);
    let joined = net.now;
    while net.now.saturating_sub(joined) < UP_AFTER.saturating_sub(HEARTBEAT_INTERVAL) {
        net.all_see(vec![0, 1, 2]);
        net.beats(1);
    }
    net.beats(2);
    net.all_see(vec![0, 1, 2, 3]);
}

#[test]
fn a_node_that_ends_is_no_member_as_soon_as_it_cannot_be_reached() {
    let mut net = Net::running(3);
    net.nodes[1].runs = Runs::No;
    net.beats(1);
    net.all_see(vec![0, 2]);
}

#[test]
fn a_node_that_says_nothing_is_no_member_after_a_while() {
    let mut net = Net::running(3);
    net.nodes[1].runs = Runs::Stopped;
    net.beats(4);
    net.all_see(vec![0, 1, 2]);
    net.beats(1);
    net.all_see(vec![0, 2]);
}

#[test]
fn a_node_that_restarts_is_taken_up_like_a_new_one() {
    let mut net = Net::running(3);
    net.start(1);
    net.beats(1);
    net.all_see(vec![0, 2]);
    net.beats(10);
    net.all_see(vec![0, 1, 2]);
}

#[test]
fn a_node_that_was_stopped_knows_that_others_stood_in() {
    let mut net = Net::running(3);
    net.nodes[1].runs = Runs::Stopped;
    net.nodes[1].gives_away = false;
    net.beats(40);
    net.nodes[1].runs = Runs::Yes;
    net.beats(1);
    assert_eq!(net.nodes[1].members.member_state(), MemberState::Away);
    net.all_see(vec![0, 2]);
    // it is not a member before it has pushed the states that it had
    net.beats(20);
    net.all_see(vec![0, 2]);
    net.nodes[1].gives_away = true;
    net.beats(1);
    assert_eq!(net.nodes[1].members.member_state(), MemberState::Joining);
    net.beats(10);
    net.all_see(vec![0, 1, 2]);
}

#[test]
fn all_nodes_that_were_stopped_together_come_back() {
    let mut net = Net::running(3);
    net.now = net.now.saturating_add(Nanos::from_secs(3600));
    net.beats(12);
    net.all_see(vec![0, 1, 2]);
}

#[test]
fn a_node_that_leaves_is_no_member_in_anybodys_eyes() {
    let mut net = Net::running(3);
    let now = net.now;
    net.nodes[1].members.leave(now);
    assert_eq!(net.sees(1), [0, 2]);
    net.beats(1);
    net.all_see(vec![0, 2]);
    let peer = net.nodes[0].members.peers().find(|peer| peer.member == member(1)).copied().unwrap();
    assert_eq!(peer.state, PeerState::Leaving);
    net.beats(20);
    net.all_see(vec![0, 2]);
}

/// Its members are then the same as before it joined, when it kept no state that they own.
#[test]
fn a_node_that_leaves_as_soon_as_it_has_joined_gives_away_what_it_has_got_since() {
    let mut net = Net::new(3);
    (0..2).for_each(|number| net.start(number));
    net.beats(8);
    net.start(2);
    net.beats(1);
    assert_eq!(net.sees(2), [0, 1]);
    assert!(net.nodes[2].members.is_drained());
    net.nodes[2].gives_away = false;
    net.beats(12);
    net.all_see(vec![0, 1, 2]);
    let now = net.now;
    net.nodes[2].members.leave(now);
    assert_eq!(net.sees(2), [0, 1]);
    assert!(!net.nodes[2].members.is_ready_to_end());
    net.nodes[2].gives_away = true;
    net.beats(1);
    assert!(net.nodes[2].members.is_ready_to_end());
}

#[test]
fn one_that_is_not_listed_any_more_is_no_member_and_known_while_it_answers() {
    let mut net = Net::running(3);
    let now = net.now;
    net.nodes[0].members.set_listed(&[member(0), member(2)], now);
    assert_eq!(net.sees(0), [0, 2]);
    net.beats(3);
    assert_eq!(net.nodes[0].members.peers().count(), 2);
    net.nodes[1].runs = Runs::No;
    net.beats(2);
    assert_eq!(net.nodes[0].members.peers().count(), 1);
}

#[test]
fn weights_are_taken_up_also_its_own() {
    let mut net = Net::running(2);
    let now = net.now;
    let heavy = [Member { weight: 2, ..member(0) }, Member { weight: 3, ..member(1) }];
    let before = net.nodes[0].members.ring().hash();
    net.nodes[0].members.set_listed(&heavy, now);
    assert_eq!(net.nodes[0].members.ring().members().collect::<Vec<_>>(), heavy);
    assert_ne!(net.nodes[0].members.ring().hash(), before);
    net.nodes[1].members.set_listed(&heavy, now);
    assert_eq!(net.nodes[0].members.ring().hash(), net.nodes[1].members.ring().hash());
}

#[test]
fn it_is_said_whether_states_are_where_they_belong() {
    let mut members = Members::new(member(0), Founding::default(), 1, Nanos::ZERO);
    members.set_listed(&[member(0), member(1)], Nanos::ZERO);
    members.unreachable(member(1).address, Nanos::ZERO);
    let ring = members.ring().hash();
    assert!(!members.heartbeat_for(member(1).address).drained);
    let before = members.undrained_count();
    members.set_drained(ring, before, Nanos::ZERO);
    assert!(members.heartbeat_for(member(1).address).drained);
    members.set_undrained();
    assert!(!members.heartbeat_for(member(1).address).drained);
    // states that arrived during a push have not been pushed
    members.set_drained(ring, before, Nanos::ZERO);
    assert!(!members.heartbeat_for(member(1).address).drained);
    members.set_drained(RingHash(1), members.undrained_count(), Nanos::ZERO);
    assert!(!members.heartbeat_for(member(1).address).drained);
    members.set_drained(ring, members.undrained_count(), Nanos::ZERO);
    assert!(members.heartbeat_for(member(1).address).drained);
}

#[test]
fn strangers_are_not_listened_to() {
    let mut net = Net::running(2);
    let (beat, now) = (net.nodes[1].members.heartbeat_for(member(0).address), net.now);
    net.nodes[0].members.record_heartbeat(member(9).address, beat, now);
    assert_eq!(net.sees(0), [0, 1]);
    assert_eq!(net.nodes[0].members.peers().count(), 1);
}

#[derive(Clone, Debug)]
enum Event {
    Start(usize),
    End(usize),
    Stop(usize),
    GoOn(usize),
    Leave(usize),
    Beats(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0_usize..5;
    prop_oneof![
        node.clone().prop_map(Event::Start),
        node.clone().prop_map(Event::End),
        node.clone().prop_map(Event::Stop),
        node.clone().prop_map(Event::GoOn),
        node.prop_map(Event::Leave),
        (1_usize..12).prop_map(Event::Beats),
    ]
}

proptest! {
    /// After any events: once nothing more happens, all running gateways agree, and all of them that do not
    /// leave are members.
    #[test]
    fn nodes_come_to_agree(events in prop::collection::vec(event(), 1..40)) {
        let mut net = Net::new(5);
        for event in events {
            match event {
                Event::Start(number) if net.nodes[number].runs == Runs::No => net.start(number),
                Event::End(number) => net.nodes[number].runs = Runs::No,
                Event::Stop(number) if net.nodes[number].runs == Runs::Yes => net.nodes[number].runs = Runs::Stopped,
                Event::GoOn(number) if net.nodes[number].runs == Runs::Stopped => net.nodes[number].runs = Runs::Yes,
                Event::Leave(number) if net.nodes[number].runs == Runs::Yes => {
                    let now = net.now;
                    net.nodes[number].members.leave(now);
                }
                Event::Beats(count) => net.beats(count),
                Event::Start(_) | Event::Stop(_) | Event::GoOn(_) | Event::Leave(_) => {}
            }
        }
        net.beats(30);
        let stays = |node: &Node| node.runs == Runs::Yes && node.members.member_state() != MemberState::Leaving;
        let members: Vec<usize> = (0..5).filter(|number| stays(&net.nodes[*number])).collect();
        for number in 0..5 {
            let node = &net.nodes[number];
            let runs = node.runs == Runs::Yes;
            let expected = if members.is_empty() { vec![number] } else { members.clone() };
            prop_assert!(!runs || net.sees(number) == expected, "{number}: {:?}", node.members);
            prop_assert!(!stays(node) || node.members.member_state() == MemberState::Member);
        }
    }
}
