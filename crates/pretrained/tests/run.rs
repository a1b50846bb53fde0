//! Trained models put to use: texts continued, scored, embedded and classified.

mod support;

use std::{fs, ops::ControlFlow, path::Path};

use burn::tensor::{Device, Tensor};
use regard_kernels::Storage;
use regard_nn::{
    blocks::Context,
    models::{LanguageModel, TokenBatch},
};
use regard_pretrained::{
    Folder, LoadOptions, Model, Plan, Pretrained, PretrainedError, Tokenizer,
    run::{
        Beginning, EmbedOptions, Finish, GenerateOptions, MaskedTokens, Perplexity, PerplexityOptions, Pooling,
        Progress, Sampling, classify_images, classify_texts, embed, generate, hide, masked_accuracy, perplexity,
        read_text,
    },
};
use support::{Golden, copy, golden, stories};

/// What the model writes from the token that begins texts on (llama2.c, `doc/stories260K.md`).
const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a \
                     big, red ball.";

fn load(path: &Path) -> (Folder, Pretrained) {
    let folder = Folder::open(path).unwrap();
    let pretrained = folder.model(LoadOptions::default(), &Device::flex()).unwrap();
    (folder, pretrained)
}

fn storyteller() -> (Tokenizer, LanguageModel) {
    let (folder, pretrained) = load(&stories());
    let Model::Language(model) = pretrained.model else { panic!("a language model") };
    (folder.tokenizer().unwrap(), model)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_to_vec().unwrap()
}

fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_story_is_told_bit_by_bit() {
    let (tokenizer, model) = storyteller();
    let mut shown = String::new();
    let options = GenerateOptions { new_tokens: 70, ..GenerateOptions::default() };
    let told = generate(&model, &tokenizer, &[1], &options, |text| {
        shown.push_str(text);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(told.text.starts_with(STORY), "{}", told.text);
    assert_eq!(shown, told.text);
    assert_eq!((told.finish, told.tokens.len(), told.prompt_tokens), (Finish::Length, 70, 1));
    // 5 layers of 4 heads of 8 numbers, keys and values, for all tokens but the last.
    assert!(told.state_bytes >= 70 * 5 * 2 * 4 * 8 * 4, "{}", told.state_bytes);
    let halves = GenerateOptions { storage: Storage::F16, ..options };
    assert!(
        generate(&model, &tokenizer, &[1], &halves, |_| ControlFlow::Continue(())).unwrap().text.starts_with(STORY)
    );
}

#[test]
fn a_story_ends_where_it_should() {
    let (tokenizer, model) = storyteller();
    let prompt = tokenizer.encode("Once upon a time, there was a", true, None).unwrap().ids;
    let tell = |options: GenerateOptions, last: &str| {
        let mut shown = String::new();
        let told = generate(&model, &tokenizer, &prompt, &options, |text| {
            shown.push_str(text);
            if !last.is_empty() && shown.contains(last) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        told.map(|told| (told.text, told.finish, told.tokens))
    };
    let options = GenerateOptions { new_tokens: 40, ..GenerateOptions::default() };
    let (text, finish, tokens) = tell(options.clone(), "").unwrap();
    assert!(text.starts_with(" little girl named Lily. She"), "the space of the first word stays: {text:?}");
    assert_eq!(finish, Finish::Length);
    let stop = GenerateOptions { stop: vec!["Lily. Sh".into(), "nothing".into()], ..options.clone() };
    let (stopped, finish, _) = tell(stop, "").unwrap();
    assert_eq!((&stopped[..], finish), (" little girl named ", Finish::Stop));
    let end = GenerateOptions { end: vec![tokens[3]], ..options.clone() };
    let (_, finish, ended) = tell(end, "").unwrap();
    let first = tokens.iter().position(|token| *token == tokens[3]).unwrap();
    assert_eq!((finish, &ended[..]), (Finish::End, &tokens[..=first]));
    assert_eq!(tell(options.clone(), "girl").unwrap().1, Finish::Interrupted);
    let none = GenerateOptions { new_tokens: 0, ..options };
    assert_eq!(tell(none, "").unwrap(), (String::new(), Finish::Length, Vec::new()));
}

#[test]
fn draws_repeat_by_their_seed() {
    let (tokenizer, model) = storyteller();
    let tell = |seed, top_k| {
        let sampling = Sampling { temperature: 1.0, top_k, top_p: Some(0.9), seed, ..Sampling::default() };
        let options = GenerateOptions { sampling, new_tokens: 30, ..GenerateOptions::default() };
        generate(&model, &tokenizer, &[1], &options, |_| ControlFlow::Continue(())).unwrap().tokens
    };
    assert_eq!(tell(1, None), tell(1, None));
    assert_ne!(tell(1, None), tell(2, None));
    let greedy = GenerateOptions { new_tokens: 30, ..GenerateOptions::default() };
    let greedy = generate(&model, &tokenizer, &[1], &greedy, |_| ControlFlow::Continue(())).unwrap().tokens;
    assert_eq!(tell(5, Some(1)), greedy);
}

#[test]
fn the_context_is_filled_and_not_passed() {
    let (folder, _) = load(&stories());
    let short = LoadOptions { context: Some(12), ..LoadOptions::default() };
    let Model::Language(model) = folder.model(short, &Device::flex()).unwrap().model else { panic!("language") };
    let tokenizer = folder.tokenizer().unwrap();
    let tell = |prompt: &[u32]| {
        generate(&model, &tokenizer, prompt, &GenerateOptions::default(), |_| ControlFlow::Continue(()))
    };
    let told = tell(&[1, 5, 6]).unwrap();
    // The last one is chosen by a full context.
    assert_eq!((told.finish, told.tokens.len()), (Finish::Context, 10));
    assert_eq!(tell(&[3; 12]).unwrap().tokens.len(), 1);
    let error = tell(&[3; 13]).unwrap_err().to_string();
    assert!(error.starts_with("prompt is 13 tokens long"), "{error}");
    assert!(tell(&[]).unwrap_err().to_string().starts_with("prompt is empty"));
}

fn measure(
    model: &LanguageModel,
    documents: &[Vec<u32>],
    context: usize,
    stride: usize,
    beginning: Beginning,
) -> Perplexity {
    let options = PerplexityOptions { context, stride, beginning, bos: Some(1) };
    perplexity(model, documents, options, on).unwrap()
}

#[test]
fn perplexity_is_that_of_the_definition() {
    let (tokenizer, model) = storyteller();
    let text = format!("{STORY} They {STORY}");
    let tokens = tokenizer.encode(&text, false, None).unwrap().ids;
    let ids: Vec<i32> = [1].into_iter().chain(tokens.iter().map(|id| *id as i32)).collect();
    let logits = values(model.forward(&TokenBatch::full(ids.clone(), 1).unwrap(), &Context::evaluation()));
    let loss = |at: usize| {
        let row: Vec<f64> = logits[at * 512..][..512].iter().map(|x| f64::from(*x)).collect();
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[ids[at + 1] as usize]
    };
    let expected = (0..tokens.len()).map(loss).sum::<f64>() / tokens.len() as f64;
    let whole = measure(&model, std::slice::from_ref(&tokens), 512, 512, Beginning::Document);
    assert!((whole.nats - expected).abs() < 1e-5, "{} {expected}", whole.nats);
    assert_eq!((whole.tokens, whole.windows, whole.documents, whole.standard_error), (tokens.len(), 1, 1, None));
    assert!((whole.perplexity - whole.nats.exp()).abs() < 1e-9 && whole.complete);
    let counted: usize = whole.buckets.iter().map(|bucket| bucket.tokens).sum();
    let mean = whole.buckets.iter().map(|bucket| bucket.tokens as f64 * bucket.nats).sum::<f64>() / counted as f64;
    assert!(counted == tokens.len() && (mean - whole.nats).abs() < 1e-9);
    assert_eq!((whole.buckets[3].from, whole.buckets[3].to, whole.buckets[3].tokens), (8, 15, 8));
    assert!((whole.buckets[0].nats - loss(0)).abs() < 1e-5);
    // Less before each token predicts worse, and a document twice is scored twice.
    let near = measure(&model, std::slice::from_ref(&tokens), 16, 16, Beginning::Document);
    let overlapping = measure(&model, std::slice::from_ref(&tokens), 16, 1, Beginning::Document);
    assert!(whole.nats < overlapping.nats && overlapping.nats < near.nats);
    assert!(near.windows > 1 && near.standard_error.unwrap() > 0.0);
    let twice = measure(&model, &[tokens.clone(), vec![], tokens.clone()], 512, 512, Beginning::Document);
    assert!((twice.nats - whole.nats).abs() < 1e-9 && twice.documents == 2 && twice.windows == 2);
    assert_eq!(measure(&model, std::slice::from_ref(&tokens), 512, 512, Beginning::Never).tokens, tokens.len() - 1);
}

#[test]
fn perplexity_says_what_is_wrong_and_stops_when_asked() {
    let (_, model) = storyteller();
    let run = |context, stride, bos, documents: &[Vec<u32>]| {
        let options = PerplexityOptions { context, stride, beginning: Beginning::Document, bos };
        perplexity(&model, documents, options, on).map_err(|error| error.to_string())
    };
    let some = [vec![5; 100]];
    for (error, start) in [
        (run(513, 1, Some(1), &some), "context is 513"),
        (run(8, 9, Some(1), &some), "stride is 9"),
        (run(8, 0, Some(1), &some), "stride is 0"),
        (run(8, 8, None, &some), "token that begins texts is missing"),
        (run(8, 8, Some(1), &[vec![], vec![]]), "text is without a token to score"),
        (run(8, 8, Some(1), &[vec![5, 512]]), "token is 512"),
    ] {
        let error = error.unwrap_err();
        assert!(error.starts_with(start), "{error}");
    }
    let options = PerplexityOptions { context: 8, stride: 8, beginning: Beginning::Never, bos: None };
    let part = perplexity(&model, &some, options, |Progress { done, total }| {
        assert_eq!(total, 13);
        if done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert!(!part.complete && part.windows == 3 && part.tokens == 24);
}

#[test]
fn a_plan_costs_what_it_hides() {
    let (folder, pretrained) = load(&stories());
    let tokenizer = folder.tokenizer().unwrap();
    let tokens = tokenizer.encode(&format!("{STORY} {STORY}"), false, None).unwrap().ids;
    let plan: Plan = toml::from_str("layers = 5\n[[group]]\nlayer = 1\nkey_heads = [0]\n").unwrap();
    let Model::Language(model) = pretrained.clone().with_plan(&plan).unwrap().model else { panic!("language") };
    let Model::Language(exact) = pretrained.model else { panic!("language") };
    let nats = |model| measure(model, std::slice::from_ref(&tokens), 512, 512, Beginning::Document).nats;
    assert!(nats(&model) > nats(&exact) + 1e-3);
}

#[test]
fn texts_are_embedded_alike_alone_and_in_batches() {
    let (folder, pretrained) = load(&golden("bert-sentences"));
    let tokenizer = folder.tokenizer().unwrap();
    let long = "the quick brown fox ".repeat(200);
    let texts = ["the fox", "a dog jumps over the lazy fox", "", &long, "the fox"];
    for (pooling, normalize) in
        [(Pooling::Mean, true), (Pooling::Mean, false), (Pooling::Class, true), (Pooling::Pooler, true)]
    {
        let options = EmbedOptions { pooling, normalize, batch: 64 };
        let together = embed(&pretrained, &tokenizer, &texts, options, on).unwrap();
        assert_eq!((together.truncated, together.complete), (1, true));
        assert!(together.dropped > 100, "{}", together.dropped);
        for (i, text) in texts.iter().enumerate() {
            let alone = embed(&pretrained, &tokenizer, &[text], options, on).unwrap();
            for (a, b) in alone.row(0).iter().zip(together.row(i)) {
                assert!((a - b).abs() < 1e-5, "{pooling:?} {i}: {a} {b}");
            }
            let square: f32 = alone.row(0).iter().map(|x| x * x).sum();
            assert!(!normalize || (square - 1.0).abs() < 1e-5);
        }
        assert!((together.cosine(0, 4) - 1.0).abs() < 1e-6 && together.cosine(0, 1) < 0.9999);
    }
    // The mean of the states.
    let options = EmbedOptions { normalize: false, ..EmbedOptions::default() };
    let mean = embed(&pretrained, &tokenizer, &texts[..1], options, on).unwrap();
    let ids: Vec<i32> = tokenizer.encode(texts[0], true, None).unwrap().ids.iter().map(|id| *id as i32).collect();
    let tokens = TokenBatch::full(ids.clone(), 1).unwrap();
    let states = values(pretrained.states(&tokens, &Context::evaluation()).unwrap());
    for (i, x) in mean.row(0).iter().enumerate() {
        let expected = states.iter().skip(i).step_by(mean.width).sum::<f32>() / ids.len() as f32;
        assert!((x - expected).abs() < 1e-5);
    }
}

#[test]
fn what_a_model_does_not_do_is_told() {
    let told = |error: PretrainedError| error.to_string();
    let (folder, language) = load(&stories());
    let tokenizer = folder.tokenizer().unwrap();
    let options = EmbedOptions::default();
    let error = told(embed(&language, &tokenizer, &["a"], options, on).unwrap_err());
    assert_eq!(error, "model is one that predicts the next token, expected an encoder of texts, such as BERT");
    let error = told(classify_texts(&language, &tokenizer, &["a"], 1, on).unwrap_err());
    assert!(error.contains("expected a classifier of texts"), "{error}");
    assert!(masked_accuracy(&language, &[], 0, 1, on).is_err());
    let encoded = tokenizer.encode("a girl", false, None).unwrap();
    assert!(told(hide(&tokenizer, encoded, 5).unwrap_err()).starts_with("token that hides others is missing"));
    let (_, encoder) = load(&golden("bert-sentences"));
    assert!(told(classify_images(&encoder, &[0.0], on).unwrap_err()).contains("is an encoder of texts"));
    let (_, image) = load(&golden("dinov2-classifier"));
    assert!(told(classify_images(&image, &[0.0; 7], on).unwrap_err()).contains("pixels"));
}

#[test]
fn classes_are_those_of_transformers() {
    let softmax = |logits: &[f64]| {
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        logits.iter().map(|x| x.exp() / sum).collect::<Vec<_>>()
    };
    let (folder, pretrained) = load(&golden("dinov2-classifier"));
    let expected = Golden::read(&golden("dinov2-classifier.safetensors"));
    let pixels: Vec<f32> = expected.0["pixel_values"].1.iter().map(|x| *x as f32).collect();
    let seen = classify_images(&pretrained, &pixels, on).unwrap();
    for (row, logits) in expected.0["logits"].1.chunks(seen.classes).enumerate() {
        let expected = softmax(logits);
        let top = seen.top(row, 99, folder.architecture());
        assert_eq!(top.len(), seen.classes);
        assert!(top.iter().all(|class| (class.probability - expected[class.class]).abs() < 1e-5));
        assert!(top.windows(2).all(|two| two[0].probability >= two[1].probability));
    }
    let (folder, pretrained) = load(&golden("bert-classifier"));
    let Ok(tokenizer) = folder.tokenizer() else { return };
    let seen = classify_texts(&pretrained, &tokenizer, &["the fox", "a dog and a fox"], 8, on).unwrap();
    let alone = classify_texts(&pretrained, &tokenizer, &["the fox"], 8, on).unwrap();
    assert!((seen.probabilities[0] - alone.probabilities[0]).abs() < 1e-6);
    let sum: f32 = seen.probabilities[..seen.classes].iter().sum();
    assert!((sum - 1.0).abs() < 1e-5 && !seen.top(0, 1, folder.architecture())[0].label.is_empty());
}

#[test]
fn hidden_tokens_are_counted_where_they_are_found() {
    let (_, pretrained) = load(&golden("bert-masked"));
    let expected = Golden::read(&golden("bert-masked.safetensors"));
    let (shape, ids) = &expected.0["input_ids"];
    let real = &expected.0["attention_mask"].1;
    let vocabulary = expected.0["logits"].0[2];
    let best = |token: usize| {
        let row = &expected.0["logits"].1[token * vocabulary..][..vocabulary];
        (0..vocabulary).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
    };
    // Of every row the first token is as the model finds it, the second is not.
    let texts: Vec<MaskedTokens> = (0..shape[0])
        .map(|row| {
            let length = (0..shape[1]).filter(|at| real[row * shape[1] + at] == 1.0).count();
            let number =
                |name: &str, at: usize| expected.0.get(name).map_or(0.0, |(_, x)| x[row * shape[1] + at]) as u32;
            let mut text = MaskedTokens::default();
            text.seen.ids = (0..length).map(|at| ids[row * shape[1] + at] as u32).collect();
            text.seen.types = (0..length).map(|at| number("token_type_ids", at)).collect();
            let wrong = (best(row * shape[1] + 1) + 1) % vocabulary as u32;
            text.hidden = vec![(0, best(row * shape[1])), (1, wrong)];
            text
        })
        .collect();
    let score = masked_accuracy(&pretrained, &texts, 0, 8, on).unwrap();
    assert_eq!((score.correct, score.hidden, score.accuracy), (shape[0], 2 * shape[0], 0.5));
    assert!(score.nats > 0.0 && score.complete && score.texts == shape[0]);
}

#[test]
fn every_so_many_tokens_are_hidden() {
    let folder = Folder::open(golden("bert-sentences")).unwrap();
    let tokenizer = folder.tokenizer().unwrap();
    let encoded = tokenizer.encode("the fox and the dog and the fox", true, None).unwrap();
    let masked = hide(&tokenizer, encoded.clone(), 3).unwrap();
    let real = encoded.ids.len() - 2;
    assert_eq!(masked.hidden[0], (2, encoded.ids[2]), "the middle of the first three, after the class token");
    assert!(masked.hidden.windows(2).all(|two| two[1].0 - two[0].0 == 3) && masked.hidden.len() == (real + 1) / 3);
    assert!(masked.hidden.iter().all(|(at, _)| Some(masked.seen.ids[*at]) == tokenizer.special().mask));
    let short = hide(&tokenizer, tokenizer.encode("fox", true, None).unwrap(), 50).unwrap();
    assert!(!short.hidden.is_empty());
    assert!(hide(&tokenizer, tokenizer.encode("", true, None).unwrap(), 50).unwrap().hidden.is_empty());
}

#[test]
fn numbers_that_are_none_are_told() {
    let broken = copy(&stories());
    let folder = Folder::open(stories()).unwrap();
    let target = broken.path().join("broken");
    folder.save(&target, |entry| (entry.name == "norm_f.weight").then(|| vec![f32::NAN; 64])).unwrap();
    let (folder, pretrained) = load(&target);
    let Model::Language(model) = &pretrained.model else { panic!("language") };
    let options = PerplexityOptions { context: 8, stride: 8, beginning: Beginning::Never, bos: None };
    let error = perplexity(model, &[vec![3, 4]], options, on).unwrap_err();
    assert!(matches!(error, PretrainedError::Numbers(_)), "{error}");
    let tokenizer = folder.tokenizer().unwrap();
    let error = generate(model, &tokenizer, &[1], &GenerateOptions::default(), |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(PretrainedError::Numbers(_))));
}

#[test]
fn texts_are_read_as_they_are_or_from_gzip() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("text");
    fs::write(&path, "aß\n").unwrap();
    assert_eq!(read_text(&path).unwrap(), "aß\n");
    fs::write(&path, b"\x1f\x8b broken").unwrap();
    assert!(read_text(&path).unwrap_err().to_string().contains("damaged gzip"));
    fs::write(&path, b"ab\xff").unwrap();
    assert!(read_text(&path).unwrap_err().to_string().contains("line 1 is not UTF-8 from byte 2 (0xff)"));
    assert!(read_text(&place.path().join("none")).unwrap_err().to_string().contains("check the path"));
}

#[test]
fn compact_weights_change_what_their_storage_loses() {
    let logits = |pretrained: &Pretrained, storage: Option<Storage>| {
        let pretrained = storage.map_or_else(|| Ok(pretrained.clone()), |storage| pretrained.clone().compact(storage));
        let Model::Language(model) = pretrained.unwrap().model else { panic!("language") };
        let tokens: Vec<i32> = (0..30).map(|i| 5 + 7 * i % 70).collect();
        let mut state = model.decoder(1, Storage::F32).unwrap();
        let mut all = values(model.extend(&tokens, &mut state).unwrap());
        all.extend(values(model.step(&[3], &mut state).unwrap()));
        all
    };
    let mut own = Vec::new();
    for path in [golden("gpt2"), golden("llama-tied"), golden("llama-grouped"), stories()] {
        let (folder, pretrained) = load(&path);
        let exact = logits(&pretrained, None);
        let largest = exact.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (storage, most) in [(Storage::F32, 1e-5), (Storage::F16, 5e-3), (Storage::Bf16, 4e-2)] {
            let same = storage == Storage::F32 || storage == folder.storage();
            let seen = logits(&pretrained, Some(storage));
            let off = seen.iter().zip(&exact).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest;
            assert!(off < if same { 1e-5 } else { most }, "{path:?} {storage:?}: {off}");
        }
        own.push(folder.storage());
    }
    assert!(own.contains(&Storage::F32) && own.contains(&Storage::Bf16), "{own:?}");
    let (_, pretrained) = load(&golden("gpt2"));
    let error = pretrained.compact(Storage::Int8).unwrap_err().to_string();
    assert!(error.starts_with("storage of weights is int8"), "{error}");
    let tracked =
        Folder::open(golden("gpt2")).unwrap().model(LoadOptions::default(), &Device::flex().autodiff()).unwrap();
    assert!(tracked.compact(Storage::F16).unwrap_err().to_string().starts_with("storage of weights is f16"));
}
