//! The committed code is what the generator writes.

/// A change of a `.proto` file without a run of the generator, or an edit of generated code, fails here.
#[test]
fn committed_code_is_what_the_generator_writes() {
    let written = protogen::generate().expect("the .proto files compile");
    let committed = protogen::read_all(&protogen::generated()).expect("there is generated code");
    let names: std::collections::BTreeSet<_> = written.keys().chain(committed.keys()).collect();
    let stale: Vec<_> = names.into_iter().filter(|name| written.get(*name) != committed.get(*name)).collect();
    assert!(stale.is_empty(), "run `cargo run -p protogen` and commit what it writes; stale: {stale:?}");
}
