//! Checks of the fuzz targets, on generated cases in every test run: arbitrary bytes, valid resources with a few
//! bytes changed, deep nesting, and long names.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "nesting is tried on a stack of known size, which only a thread has"
)]

#[path = "../../../tools/fuzz/src/checks.rs"]
pub mod checks;

use std::sync::LazyLock;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::Metadata;
use evenkeel_proto::envoy::config::listener::v3::{ApiListener, Listener};
use evenkeel_proto::envoy::config::route::v3::FilterConfig;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::Any;
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use evenkeel_xds::ads::XdsVariant;
use evenkeel_xds::resource::ResourceType;
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::resources;

use checks::Resources;

static RESOURCES: LazyLock<Resources> = LazyLock::new(Resources::new);

/// fault 36: every seed is accepted. A seed with any one byte changed, or truncated at any byte, is accepted or
/// rejected without a panic.
#[test]
fn every_seed_survives_changed_bytes() {
    for kind in ResourceType::ALL {
        let (mut accepted, mut rejected) = (0, 0);
        for seed in checks::seeds(kind) {
            assert!(RESOURCES.check(kind, &seed), "the seeds of a {kind} are valid");
            for at in 0..seed.len() {
                let mut tried = vec![seed[..at].to_vec()];
                for byte in [0, seed[at] ^ 1, seed[at].wrapping_add(1), 0x7f, 0x80, 0xff] {
                    let mut changed = seed.clone();
                    changed[at] = byte;
                    tried.push(changed);
                }
                for bytes in tried {
                    *if RESOURCES.check(kind, &bytes) { &mut accepted } else { &mut rejected } += 1;
                }
            }
        }
        assert!(accepted > 10 && rejected > 10, "{kind}: {accepted} accepted, {rejected} rejected");
    }
}

/// A change of some bytes of a message.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Cut(Index),
    Remove(Index, Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index, usize),
    Splice(Index, Index, Vec<u8>),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len() + 1;
        let range = |a: &Index, b: &Index| {
            let (a, b) = (a.index(len), b.index(len));
            a.min(b)..a.max(b)
        };
        match self {
            Change::Set(at, byte) => {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            Change::Cut(at) => bytes.truncate(at.index(len)),
            Change::Remove(from, to) => {
                bytes.drain(range(from, to));
            }
            Change::Insert(at, new) => {
                let at = at.index(len);
                bytes.splice(at..at, new.iter().copied());
            }
            Change::Repeat(from, to, times) => {
                let range = range(from, to);
                let again = bytes[range.clone()].repeat(*times);
                bytes.splice(range, again);
            }
            Change::Splice(from, to, other) => {
                bytes.splice(range(from, to), other.iter().copied());
            }
        }
    }
}

fn kinds() -> impl Strategy<Value = ResourceType> {
    prop::sample::select(ResourceType::ALL.to_vec())
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let others: Vec<_> = ResourceType::ALL.into_iter().flat_map(checks::seeds).collect();
    let index = any::<Index>;
    let change = prop_oneof![
        6 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => index().prop_map(Change::Cut),
        1 => (index(), index()).prop_map(|(from, to)| Change::Remove(from, to)),
        1 => (index(), prop::collection::vec(any::<u8>(), 1..8)).prop_map(|(at, new)| Change::Insert(at, new)),
        1 => (index(), index(), 2..20_usize).prop_map(|(from, to, times)| Change::Repeat(from, to, times)),
        1 => (index(), index(), prop::sample::select(others)).prop_map(|(from, to, other)| Change::Splice(from, to, other)),
    ];
    prop::collection::vec(change, 1..5)
}

/// Frequent parts of names and bootstraps.
const PARTS: &[&str] = &[
    "xdstp:",
    "//",
    "/",
    "envoy.config.listener.v3.Listener",
    "?",
    "&",
    "=",
    "#",
    "%",
    "%2F",
    "%s",
    "a",
    "b",
    " ",
    "\u{f6}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\\",
    "\"xds_servers\":[",
    "{\"server_uri\":\"a\",",
    "\"channel_creds\":[{\"type\":\"insecure\"}]}",
    "],",
    "\"authorities\":{",
    "\"a\":{}",
    "\"node\":",
    "null",
    "1e9",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30_000))]

    /// fault 36: resources with a few bytes changed are accepted or rejected.
    #[test]
    fn changed_resources_are_accepted_or_rejected(kind in kinds(), seed in any::<Index>(), changes in changes()) {
        let mut bytes = seed.get(&checks::seeds(kind)).clone();
        for change in &changes {
            change.apply(&mut bytes);
        }
        RESOURCES.check(kind, &bytes);
    }

    /// fault 36: responses with a few bytes changed end in an ACK, a NACK or a closed stream.
    #[test]
    fn changed_responses_do_not_panic(
        kind in kinds(),
        variant in prop::sample::select(vec![XdsVariant::StateOfTheWorld, XdsVariant::Delta]),
        changes in changes(),
    ) {
        let mut bytes = checks::response(variant, kind);
        checks::check_response(variant, &bytes);
        for change in &changes {
            change.apply(&mut bytes);
        }
        checks::check_response(variant, &bytes);
    }

    /// fault 36: arbitrary bytes are rejected as a resource.
    #[test]
    fn arbitrary_bytes_are_rejected(kind in kinds(), bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        RESOURCES.check(kind, &bytes);
    }

    /// fault 36: arbitrary text is parsed as a bootstrap or a resource name, or is rejected as both.
    #[test]
    fn text_is_a_bootstrap_or_a_name_or_neither(parts in prop::collection::vec(prop::sample::select(PARTS), 0..30)) {
        let text = parts.concat();
        checks::check_bootstrap(text.as_bytes());
        checks::check_name(text.as_bytes());
    }
}

/// fault 36: the text of an error is bounded, however long the names in the resource are.
#[test]
fn long_names_are_not_repeated() {
    let long = "n".repeat(1 << 20);
    let long_host = format!("{long}:80");
    let bad_hosts = vec!["nowhere:80"; 10_000];
    let mut rejected = 0;
    let mut try_one = |kind, bytes: Vec<u8>| rejected += usize::from(!RESOURCES.check(kind, &bytes));
    let manager = |filter: &str| {
        let mut manager = resources::manager(RouteSpecifier::RouteConfig(resources::route_config("", "a")));
        manager
            .http_filters
            .insert(0, resources::filter(filter, Any { type_url: long.clone(), value: Vec::new() }));
        resources::listener("a", &manager)
    };
    for listener in [
        resources::listener_with_rds(&long, "a"),
        resources::listener_with_rds("a", &long),
        resources::listener_with_routes("a", resources::route_config(&long, &long)),
        manager("a"),
        manager(&long),
    ] {
        try_one(ResourceType::Listener, listener.encode_to_vec());
    }
    let mut routes = resources::route_config("a", "a");
    routes.virtual_hosts = vec![resources::virtual_host(&long, vec![resources::route(&long, &long)]); 2];
    for routes in [routes, resources::route_config(&long, "a"), resources::route_config("a", &long)] {
        try_one(ResourceType::RouteConfig, routes.encode_to_vec());
    }
    let mut policy = resources::cluster("a");
    let unknown = Any { type_url: long.clone(), value: Vec::new() };
    policy.load_balancing_policy = Some(checks::policies(vec![(&*long, unknown); 3]));
    for cluster in [
        policy,
        resources::cluster(&long),
        resources::dns_cluster("a", &long, 443),
        resources::aggregate_cluster("a", &[&long, &long]),
    ] {
        try_one(ResourceType::Cluster, cluster.encode_to_vec());
    }
    for load in [
        resources::load_assignment(&long, &["10.0.0.1:80"]),
        resources::load_assignment("a", &[&long_host]),
        resources::load_assignment("a", &bad_hosts),
    ] {
        try_one(ResourceType::Endpoints, load.encode_to_vec());
    }
    assert!(rejected > 8, "only {rejected} were rejected");
}

/// Builder of nested messages, from the innermost to the outermost, so that each level costs only the bytes that it
/// adds.
#[derive(Default)]
struct NestedMessages {
    reversed: Vec<u8>,
}

impl NestedMessages {
    /// Wraps the message as field `number` of a message that starts with `before`.
    fn wrap(mut self, before: &[u8], number: u8) -> NestedMessages {
        let mut head = before.to_vec();
        head.push(number << 3 | 2);
        evenkeel_proto::prost::encoding::encode_varint(self.reversed.len() as u64, &mut head);
        self.reversed.extend(head.iter().rev());
        self
    }

    /// Wraps the message in an `Any` with the type URL of `M`.
    fn any<M: Name>(self) -> NestedMessages {
        let type_url = Any { type_url: M::type_url(), value: Vec::new() }.encode_to_vec();
        self.wrap(&type_url, 2)
    }

    fn times(self, levels: usize, level: impl Fn(NestedMessages) -> NestedMessages) -> NestedMessages {
        (0..levels).fold(self, |nest, _| level(nest))
    }

    fn read<M: Message + Default>(self) -> Result<M, evenkeel_proto::prost::DecodeError> {
        M::decode(&*self.bytes())
    }

    fn bytes(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }
}

/// Returns resources of every kind that can be nested.
fn nested(levels: usize) -> Vec<(&'static str, ResourceType, Vec<u8>)> {
    let key_a = [0x0a, 1, b'a'];
    // A `Struct` with a field `a`, whose value is a `Struct` with a field `a`.
    let structs =
        || NestedMessages::default().times(levels, |nest| nest.wrap(&key_a, 2).wrap(&[], 1).wrap(&[], 5));
    // A `Struct` with a list of lists.
    let lists = || NestedMessages::default().times(levels, |nest| nest.wrap(&[], 1).wrap(&[], 6));
    let in_struct = |value: NestedMessages| value.wrap(&key_a, 2).wrap(&[], 1);
    let typed_struct = |value: NestedMessages| {
        let type_url = TypedStruct { type_url: "x/round_robin".to_owned(), value: None }.encode_to_vec();
        in_struct(value).wrap(&type_url, 2).any::<TypedStruct>()
    };
    // Policies over policies, each in an `Any`, for which protobuf has no recursion limit.
    let policies = NestedMessages::default()
        .times(levels, |nest| nest.any::<WrrLocality>().wrap(&[], 2).wrap(&[], 4).wrap(&[], 1).wrap(&[], 1))
        .any::<WrrLocality>();
    let filters = || {
        NestedMessages::default()
            .times(levels, |nest| nest.any::<FilterConfig>().wrap(&[], 1))
            .any::<FilterConfig>()
    };
    let anys = || NestedMessages::default().times(levels, NestedMessages::any::<Any>);

    let any = |nest: NestedMessages| nest.read::<Any>().expect("an Any holds bytes");
    let cluster = |policy: Any| {
        let list = checks::policies([("nested", policy)]);
        Cluster { load_balancing_policy: Some(list), ..resources::cluster("a") }.encode_to_vec()
    };
    // The last value of a field counts, and an encoded message may come in parts, so fields outside our copy of the
    // protocol are appended.
    let with_metadata = |value: NestedMessages| {
        let metadata = in_struct(value).wrap(&key_a, 2).wrap(&[], 1).bytes();
        let mut bytes = resources::cluster("a").encode_to_vec();
        let tag = Cluster { metadata: Some(Metadata::default()), ..Cluster::default() }.encode_to_vec();
        bytes.extend(&tag[..tag.len() - 1]);
        evenkeel_proto::prost::encoding::encode_varint(metadata.len() as u64, &mut bytes);
        bytes.extend(metadata);
        bytes
    };
    let listener = |api_listener: Any| {
        let api_listener = Some(ApiListener { api_listener: Some(api_listener) });
        Listener { name: "a".to_owned(), api_listener, ..Listener::default() }.encode_to_vec()
    };
    let filtered = |config: Any| {
        let mut manager = resources::manager(RouteSpecifier::RouteConfig(resources::route_config("", "a")));
        manager.http_filters.insert(0, resources::filter("nested", config));
        resources::listener("a", &manager).encode_to_vec()
    };
    let overridden = |config: Any| {
        let mut routes = resources::route_config("a", "a");
        routes.virtual_hosts[0].typed_per_filter_config.insert("nested".to_owned(), config);
        routes.encode_to_vec()
    };
    let [l, r, c, _] = ResourceType::ALL;
    vec![
        ("policies in policies", c, cluster(any(policies))),
        ("structs in a TypedStruct", c, cluster(any(typed_struct(structs())))),
        ("lists in a TypedStruct", c, cluster(any(typed_struct(lists())))),
        ("Anys in a policy", c, cluster(any(anys().any::<Any>()))),
        ("structs in metadata", c, with_metadata(structs())),
        ("lists in metadata", c, with_metadata(lists())),
        ("Anys in an API listener", l, listener(any(anys().any::<Any>()))),
        ("FilterConfigs in a filter", l, filtered(any(filters()))),
        ("Anys in a filter", l, filtered(any(anys().any::<Any>()))),
        ("structs in a filter", l, filtered(any(typed_struct(structs())))),
        ("FilterConfigs in an override", r, overridden(any(filters()))),
        ("Anys in an override", r, overridden(any(anys().any::<Any>()))),
        ("structs in an override", r, overridden(any(typed_struct(structs())))),
    ]
}

/// fault 39: ten thousand levels of nesting are rejected. Depths around the limits are accepted or rejected, all on a
/// stack of 2 MiB.
#[test]
fn deep_nesting_is_rejected() {
    let body = || {
        for levels in (14..20).chain(44..54).chain(94..104).chain([1_000]) {
            for (_, kind, bytes) in nested(levels) {
                RESOURCES.check(kind, &bytes);
            }
        }
        for (what, kind, bytes) in nested(10_000) {
            assert!(!RESOURCES.check(kind, &bytes), "{what}, ten thousand levels");
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(body).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
