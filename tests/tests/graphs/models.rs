//! Every example model compiles as it stands, by a program that knows none of its custom actors.

use zbmd_tests::run::{compile, graph_file};

/// Models beside the `model.ron` of each folder. Other files are sub-models: they have ports instead of streams.
const MORE: [&str; 5] = [
    "cd2dat/onestep.ron",
    "cd2dat/polyphase.ron",
    "cd2dat/tones.ron",
    "fm/melody.ron",
    "fm/modulate.ron",
];

#[test]
fn every_model_compiles_as_it_stands() {
    let mut models: Vec<String> = MORE.map(str::to_owned).to_vec();
    for folder in std::fs::read_dir(graph_file("")).expect("graphs/") {
        let folder = folder.expect("an entry of graphs/").file_name();
        let model = format!("{}/model.ron", folder.to_str().expect("a plain name"));
        // Those around ONNX files, which lie apart, have tests of their own.
        let apart = ["vad/model.ron", "digits/model.ron"].contains(&model.as_str());
        if graph_file(&model).exists() && !apart {
            models.push(model);
        }
    }
    models.sort();
    assert!(models.len() >= MORE.len() + 6, "{models:?}");
    for model in models {
        for devices in [1, 2] {
            compile(&model, devices, &zbmd_backends::standard_registry());
        }
    }
}
