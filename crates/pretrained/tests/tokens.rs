//! Tokenizers of folders against the Python ones.

mod support;

use std::fs;

use regard_pretrained::{Folder, Message, Tokenizer};
use serde::Deserialize;
use support::{copy, edit, golden, stories};

#[derive(Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
    plain: Vec<u32>,
    decoded: String,
}

const TOKENIZED: [&str; 3] = ["bert-masked", "bert-sentences", "llama-grouped"];

fn rows(model: &str) -> Vec<Row> {
    serde_json::from_slice(&fs::read(golden(model).join("tokens.json")).unwrap()).unwrap()
}

fn tokenizer(model: &str) -> Tokenizer {
    Folder::open(golden(model)).unwrap().tokenizer().unwrap()
}

#[test]
fn texts_become_the_same_tokens_as_in_python() {
    for model in TOKENIZED {
        let tokenizer = tokenizer(model);
        for row in rows(model) {
            let encoded = tokenizer.encode(&row.text, true, None).unwrap();
            assert_eq!(encoded.ids, row.ids, "{model}: {}", row.text);
            assert_eq!((encoded.dropped, encoded.types.len()), (0, row.ids.len()));
            assert_eq!(tokenizer.encode(&row.text, false, None).unwrap().ids, row.plain, "{model}: {}", row.text);
            assert_eq!(tokenizer.decode(&row.ids, false).unwrap(), row.decoded, "{model}: {}", row.text);
        }
    }
}

#[test]
fn what_does_not_fit_is_counted() {
    let tokenizer = tokenizer("bert-masked");
    let (class, separator) = (tokenizer.special().class.unwrap(), tokenizer.special().separator.unwrap());
    let row = &rows("bert-masked")[1];
    for limit in 3..row.ids.len() + 2 {
        let encoded = tokenizer.encode(&row.text, true, Some(limit)).unwrap();
        assert_eq!(encoded.ids.len(), limit.min(row.ids.len()));
        assert_eq!(encoded.dropped, row.ids.len().saturating_sub(limit));
        assert_eq!((encoded.ids[0], encoded.ids.last()), (class, Some(&separator)));
        assert_eq!(encoded.ids[1..encoded.ids.len() - 1], row.plain[..encoded.ids.len() - 2]);
    }
    let error = tokenizer.encode(&row.text, true, Some(2)).unwrap_err().to_string();
    assert!(
        error.contains("a limit of 2 tokens leaves no room beside 2 special tokens; expected at least 3"),
        "{error}"
    );
    assert_eq!(tokenizer.encode("", true, Some(2)).unwrap().ids, [class, separator]);
}

/// What a `tokenizer.json` says about lengths is for another program.
#[test]
fn lengths_of_the_file_do_not_count() {
    let copy = copy(&golden("llama-grouped"));
    edit(copy.path(), "tokenizer.json", |value| {
        value["truncation"] =
            serde_json::json!({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        value["padding"] = serde_json::json!({"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    });
    let tokenizer = Tokenizer::open(copy.path()).unwrap();
    for row in rows("llama-grouped") {
        assert_eq!(tokenizer.encode(&row.text, true, None).unwrap().ids, row.ids, "{}", row.text);
    }
}

#[test]
fn two_texts_share_a_row() {
    let tokenizer = tokenizer("bert-masked");
    let pair = tokenizer.encode_pair("the cat", "a dog sat", None).unwrap();
    let (first, second) =
        (tokenizer.encode("the cat", true, None).unwrap().ids, tokenizer.encode("a dog sat", true, None).unwrap().ids);
    assert_eq!(pair.ids, [&first[..], &second[1..]].concat());
    let expected: Vec<u32> = (0..pair.ids.len()).map(|i| u32::from(i >= first.len())).collect();
    assert_eq!(pair.types, expected);
    let shorter = tokenizer.encode_pair("the cat", "a dog sat", Some(7)).unwrap();
    assert_eq!((shorter.ids.len(), shorter.dropped), (7, pair.ids.len() - 7));
}

#[test]
fn tokens_one_by_one_give_the_text_of_all() {
    let (bytes, pieces) = (tokenizer("llama-grouped"), Tokenizer::open(stories()).unwrap());
    for tokenizer in [&bytes, &pieces] {
        for text in
            ["Hello, world!", "日本 emoji 🙂🙂 end", "🙂", " a  b\n\n c", "e\u{301}\u{fffd}!", "", "naïve café — ∑"]
        {
            let ids = tokenizer.encode(text, true, None).unwrap().ids;
            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            for id in &ids {
                streamed += &stream.push(*id).unwrap();
            }
            streamed += &stream.finish().unwrap();
            assert_eq!(streamed, tokenizer.decode(&ids, false).unwrap(), "{text:?}");
            assert_eq!(streamed, text, "{text:?}");
        }
    }
    // Cut within a character: nothing until the end says that no more comes.
    let ids = bytes.encode("🙂", false, None).unwrap().ids;
    assert_eq!(ids.len(), 4);
    let mut stream = bytes.stream();
    for id in &ids[..3] {
        assert_eq!(stream.push(*id).unwrap(), "");
    }
    assert_eq!(stream.clone().finish().unwrap(), "\u{fffd}");
    assert_eq!(stream.push(ids[3]).unwrap(), "🙂");
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn numbers_that_are_no_tokens_are_errors() {
    let tokenizer = tokenizer("llama-grouped");
    assert_eq!(tokenizer.size(), 272);
    let error = tokenizer.decode(&[3, 272], false).unwrap_err().to_string();
    assert!(error.starts_with("token 272; expected numbers below 272"), "{error}");
    assert!(tokenizer.stream().push(9999).is_err());
}

#[test]
fn stories_begin_with_their_first_token() {
    let tokenizer = Folder::open(stories()).unwrap().tokenizer().unwrap();
    assert_eq!((tokenizer.special().bos, tokenizer.special().eos), (Some(1), Some(2)));
    let encoded = tokenizer.encode("Once upon a time", true, None).unwrap();
    assert_eq!(encoded.ids[0], 1);
    assert_eq!(encoded.ids[1..], tokenizer.encode("Once upon a time", false, None).unwrap().ids);
    let limited = tokenizer.encode("Once upon a time", true, Some(3)).unwrap();
    assert_eq!((limited.ids.len(), limited.dropped), (3, encoded.ids.len() - 3));
}

#[test]
fn the_first_token_is_added_where_settings_ask_for_it() {
    let copy = copy(&golden("llama-grouped"));
    edit(copy.path(), "tokenizer_config.json", |value| value["add_bos_token"] = true.into());
    let tokenizer = Tokenizer::open(copy.path()).unwrap();
    let plain = tokenizer.encode("hello", false, None).unwrap().ids;
    assert_eq!(tokenizer.encode("hello", true, None).unwrap().ids, [&[1][..], &plain].concat());
    let limited = tokenizer.encode("hello", true, Some(2)).unwrap();
    assert_eq!((limited.ids, limited.dropped), (vec![1, plain[0]], plain.len() - 1));
    let copy = support::copy(&stories());
    edit(copy.path(), "tokenizer_config.json", |value| {
        *value = serde_json::json!({"add_bos_token": false, "tokenizer_class": "LlamaTokenizer"});
    });
    let tokenizer = Tokenizer::open(copy.path()).unwrap();
    assert_eq!(tokenizer.encode("hi", true, None).unwrap(), tokenizer.encode("hi", false, None).unwrap());
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    rendered: String,
}

#[test]
fn conversations_are_rendered_as_in_python() {
    let chat: Chat = serde_json::from_slice(&fs::read(golden("llama-grouped/chat.json")).unwrap()).unwrap();
    let with = tokenizer("llama-grouped");
    assert!(with.has_chat_template());
    let text = with.chat(&chat.messages, true).unwrap();
    assert_eq!(text, chat.rendered);
    let without = with.chat(&chat.messages, false).unwrap();
    assert_eq!(text, without + "<|im_start|>assistant\n");
    // Marks of turns are one token each.
    let ids = with.encode(&text, false, None).unwrap().ids;
    assert_eq!(ids.iter().filter(|id| **id == with.special().bos.unwrap()).count(), 5);
    let error = Tokenizer::open(stories()).unwrap().chat(&chat.messages, true).unwrap_err().to_string();
    assert!(error.contains("the folder has no chat template; expected chat_template"), "{error}");
}

#[test]
fn templates_are_found_in_all_their_places() {
    let copy = copy(&golden("llama-grouped"));
    let hello = [Message::new("user", "hello")];
    let template = "{{ eos_token }}{{ messages[0].content }}";
    edit(copy.path(), "tokenizer_config.json", |value| {
        value["chat_template"] =
            serde_json::json!([{"name": "tool", "template": "x"}, {"name": "default", "template": template}]);
    });
    assert_eq!(Tokenizer::open(copy.path()).unwrap().chat(&hello, true).unwrap(), "<|im_end|>hello");
    fs::write(copy.path().join("chat_template.jinja"), "{{ messages[0].role }}").unwrap();
    assert_eq!(Tokenizer::open(copy.path()).unwrap().chat(&hello, true).unwrap(), "user");
    fs::write(copy.path().join("chat_template.jinja"), "{% if %}").unwrap();
    let error = Tokenizer::open(copy.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja: its chat template is not one that is read"), "{error}");
}

#[test]
fn broken_tokenizers_are_told() {
    let copy = copy(&golden("llama-grouped"));
    let message = || Folder::open(copy.path()).unwrap().tokenizer().unwrap_err().to_string();
    let sound = fs::read(copy.path().join("tokenizer.json")).unwrap();
    for content in [&b"{}"[..], b"not JSON", &sound[..sound.len() / 2]] {
        fs::write(copy.path().join("tokenizer.json"), content).unwrap();
        assert!(message().contains("tokenizer.json: not a tokenizer that is read"), "{}", message());
    }
    fs::write(copy.path().join("tokenizer.json"), &sound).unwrap();
    edit(copy.path(), "tokenizer.json", |value| value["model"]["vocab"]["more"] = 300.into());
    assert!(message().contains("the tokenizer has 301 tokens; expected at most vocab_size = 272"), "{}", message());
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    assert!(message().contains("no tokenizer, expected tokenizer.json, vocab.txt"), "{}", message());
    fs::write(copy.path().join("vocab.txt"), "[UNK]\n").unwrap();
    assert!(message().contains("vocab.txt of a llama model"), "{}", message());
    let copy = support::copy(&golden("bert-masked"));
    let message = || Folder::open(copy.path()).unwrap().tokenizer().unwrap_err().to_string();
    fs::write(copy.path().join("vocab.txt"), "[UNK]\n[CLS]\n").unwrap();
    assert!(message().contains("vocab.txt: no line '[SEP]', expected one"), "{}", message());
    edit(copy.path(), "tokenizer_config.json", |value| value["do_lower_case"] = "yes".into());
    assert!(
        message().contains("tokenizer_config.json: do_lower_case is \"yes\"; expected true or false"),
        "{}",
        message()
    );
}

/// A list of symbols, as of formulas: the longest one that fits, from the left.
#[test]
fn symbols_are_cut_anywhere() {
    let copy = copy(&golden("albert"));
    let symbols =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "Cl", "c", "(", ")", "=", "O", "[O-]", ">", ">>", "."];
    fs::write(copy.path().join("vocab.txt"), symbols.join("\n")).unwrap();
    let tokenizer = Folder::open(copy.path()).unwrap().tokenizer().unwrap();
    let cut = |text: &str| -> Vec<String> {
        tokenizer.encode(text, false, None).unwrap().ids.into_iter().map(|id| tokenizer.token(id).unwrap()).collect()
    };
    assert_eq!(cut("CCl(C)=O.[O-]>>c"), ["C", "Cl", "(", "C", ")", "=", "O", ".", "[O-]", ">>", "c"]);
    assert_eq!(cut("Cxyz[MASK]O"), ["C", "[UNK]", "[MASK]", "O"]);
    let ids = tokenizer.encode("CCl", true, None).unwrap().ids;
    assert_eq!(ids, [2, 5, 6, 3]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "CCl");
}

/// Numbers as the tokenizers of `transformers` give them for the same files; the hidden word takes the space before it, as
/// in the files of RoBERTa.
#[test]
fn bytes_are_joined_pair_by_pair() {
    let copy = copy(&golden("gpt2"));
    let pieces =
        ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>", "h", "e", "l", "o", "\u{120}", "he", "ll"];
    let vocabulary = |first: usize| {
        let all = pieces[first..].iter().chain(&["hell", "hello", "\u{120}hello"]).enumerate();
        serde_json::to_string(&all.map(|(id, piece)| (piece, id)).collect::<std::collections::BTreeMap<_, _>>())
            .unwrap()
    };
    fs::write(copy.path().join("merges.txt"), "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\u{120} hello\n").unwrap();
    let tokenizer = |first: usize| {
        fs::write(copy.path().join("vocab.json"), vocabulary(first)).unwrap();
        Tokenizer::open(copy.path()).unwrap()
    };
    let ids = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, true, None).unwrap().ids;
    let gpt2 = tokenizer(5);
    assert_eq!(ids(&gpt2, "hello hello<|endoftext|>hel"), [9, 10, 0, 6, 3]);
    assert_eq!(gpt2.decode(&[9, 10, 0], false).unwrap(), "hello hello");
    assert_eq!((gpt2.special().bos, gpt2.special().eos, gpt2.special().mask), (Some(0), Some(0), None));
    let roberta = tokenizer(0);
    assert_eq!(ids(&roberta, "hello <mask> hello"), [0, 14, 4, 15, 1]);
    assert_eq!((roberta.special().mask, roberta.special().padding), (Some(4), Some(3)));
    fs::write(copy.path().join("merges.txt"), "h x\n").unwrap();
    let error = Tokenizer::open(copy.path()).unwrap_err().to_string();
    assert!(error.contains("merges.txt: not merges of a vocabulary"), "{error}");
}
