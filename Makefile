# Installs the program, its manual pages and its completions, as packages for Debian and others expect it:
#
#   make install                                  below /usr/local
#   make install PREFIX=/usr DESTDIR=stage        into a folder that becomes a package
#   make install BINARY=path/to/regard            with a binary that is there already
#   make static                                   a binary that needs no library of the system
#
# `cargo install --path crates/cli` installs the program alone.
PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo

target  := $(or $(CARGO_TARGET_DIR),target)
BINARY  ?= $(target)/release/regard
musl    := x86_64-unknown-linux-musl

bin     := $(DESTDIR)$(PREFIX)/bin
man     := $(DESTDIR)$(PREFIX)/share/man/man1
bash    := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zsh     := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fish    := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

.PHONY: all static install uninstall check book

all: $(BINARY)

$(BINARY):
	$(CARGO) build --locked --release

# Needs the target, rustup target add x86_64-unknown-linux-musl, and musl-gcc (musl-tools of Debian).
static:
	$(CARGO) build --locked --release --target $(musl) --package regard-cli
	@if ldd "$(target)/$(musl)/release/regard" 2>/dev/null | grep '=>'; then echo "libraries of the system" >&2; exit 1; fi
	@ls -l "$(target)/$(musl)/release/regard"

install: $(BINARY)
	install -d "$(bin)" "$(man)" "$(bash)" "$(zsh)" "$(fish)"
	install -m 755 "$(BINARY)" "$(bin)/regard"
	"$(bin)/regard" man --out "$(man)" >/dev/null
	"$(bin)/regard" completions bash >"$(bash)/regard"
	"$(bin)/regard" completions zsh >"$(zsh)/_regard"
	"$(bin)/regard" completions fish >"$(fish)/regard.fish"
	chmod 644 "$(man)"/regard*.1 "$(bash)/regard" "$(zsh)/_regard" "$(fish)/regard.fish"

uninstall:
	rm -f "$(bin)/regard" "$(man)"/regard.1 "$(man)"/regard-*.1
	rm -f "$(bash)/regard" "$(zsh)/_regard" "$(fish)/regard.fish"

check:
	.ci/run

# The book, recorded results and the playground, in target/book. Needs mdbook.
book:
	docs/site
