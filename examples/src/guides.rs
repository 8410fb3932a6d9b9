//! The guides of `docs/guides`: their code is compiled, and some of it run, with the tests of this crate's documentation.

/// What nobody sees but the tests.
#[cfg(doctest)]
mod compiled {
    #[doc = include_str!("../../docs/guides/laptop.md")]
    struct Laptop;

    #[doc = include_str!("../../docs/guides/own-policy.md")]
    struct OwnPolicy;

    #[doc = include_str!("../../docs/guides/platform-engineer.md")]
    struct PlatformEngineer;

    #[doc = include_str!("../../docs/guides/service-owner.md")]
    struct ServiceOwner;

    #[doc = include_str!("../../docs/guides/unequal-fleet.md")]
    struct UnequalFleet;
}
