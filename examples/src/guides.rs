//! Code blocks of `docs/guides` and of other pages for users, compiled and partly run as doctests of this crate.

/// Compiled for doctests only.
#[cfg(doctest)]
mod compiled {
    #[doc = include_str!("../../docs/istio-and-kubernetes.md")]
    struct IstioAndKubernetes;

    #[doc = include_str!("../../docs/guides/laptop.md")]
    struct Laptop;

    #[doc = include_str!("../../docs/migrating.md")]
    struct Migrating;

    #[doc = include_str!("../../docs/guides/own-policy.md")]
    struct OwnPolicy;

    #[doc = include_str!("../../docs/guides/platform-engineer.md")]
    struct PlatformEngineer;

    #[doc = include_str!("../../docs/guides/service-owner.md")]
    struct ServiceOwner;

    #[doc = include_str!("../../docs/guides/unequal-fleet.md")]
    struct UnequalFleet;
}
