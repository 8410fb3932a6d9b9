//! The committed code equals the generator's output.

use std::collections::BTreeSet;

/// Fails after a change of a `.proto` file without a run of the generator, or an edit of generated code.
#[test]
fn committed_code_is_what_the_generator_writes() {
    for output in protogen::generate().expect("the .proto files compile") {
        let committed = protogen::read_all(&output.folder).expect("there is generated code");
        let names: BTreeSet<_> = output.files.keys().chain(committed.keys()).collect();
        let stale: Vec<_> =
            names.into_iter().filter(|name| output.files.get(*name) != committed.get(*name)).collect();
        let folder = output.folder.display();
        assert!(
            stale.is_empty(),
            "run `cargo run -p protogen` and commit what it writes; stale in {folder}: {stale:?}"
        );
    }
}
