package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestSecretsAreNeverShown prints a whole configuration in every way that comes to mind.
func TestSecretsAreNeverShown(t *testing.T) {
	t.Parallel()
	c, _, err := Load(writeFile(t, secretFiles(t), "sentinel.yaml", complete), nil)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{
		c.Admin.Token.Reveal(), c.Redis.Password.Reveal(), c.JWT.Keys[0].Secret.Reveal(), c.JWT.Keys[1].Secret.Reveal(),
		c.Anonymous.CookieSecrets[0].Reveal(), c.Anonymous.CookieSecrets[1].Reveal(),
	}
	var out bytes.Buffer
	hidden := struct{ s Secret }{c.Admin.Token} // printing calls no methods of unexported fields
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p", "%T"} {
		fmt.Fprintf(&out, verb+"\n", c)
		fmt.Fprintf(&out, verb+"\n", &c)
		fmt.Fprintf(&out, verb+"\n", c.Admin.Token)
		fmt.Fprintf(&out, verb+"\n", &c.Admin.Token)
		fmt.Fprintf(&out, verb+"\n", hidden)
	}
	encoded := struct {
		Config Config
		Token  Secret
		Keys   map[string]Secret
	}{c, c.Admin.Token, map[string]Secret{"a": c.Admin.Token}}
	inJSON, err := json.Marshal(encoded)
	if err != nil {
		t.Fatal(err)
	}
	inYAML, err := yaml.Dump(encoded)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(inJSON)
	out.Write(inYAML)
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("started", "config", c, "token", c.Admin.Token, "pointer", &c.Admin.Token)
	}
	out.WriteString(c.Admin.Token.String())
	for _, secret := range secrets {
		if secret == "" {
			t.Fatal("a secret was not read")
		}
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprint([]byte(secret))} {
			if strings.Contains(strings.ToLower(out.String()), form) {
				t.Errorf("%q is shown", form)
			}
		}
	}
	for what, text := range map[string]string{"JSON": string(inJSON), "YAML": string(inYAML), "all": out.String()} {
		if !strings.Contains(text, redacted) {
			t.Errorf("%s has no %s", what, redacted)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()
	dir := secretFiles(t)
	writeFile(t, dir, "empty", "\n")
	writeFile(t, dir, "short", strings.Repeat("s", 31)+"\n")
	writeFile(t, dir, "long", strings.Repeat("l", 64<<10+1))
	writeFile(t, dir, "pem", "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----\n")
	writeFile(t, dir, "words", "two words, no token")
	writeFile(t, dir, "latin1", "caf\xe9-caf\xe9-caf\xe9-caf\xe9")
	key := func(file string) string { return "jwt: {keys: [{alg: HS256, secret_file: " + file + "}]}" }
	for _, tt := range []struct{ name, file, want string }{
		{"JWT-23 empty", key("empty"), "jwt.keys[0].secret_file: DIR/empty is empty (write the secret into it)"},
		{"JWT-23 31 bytes", key("short"), "jwt.keys[0].secret_file: holds 31 bytes, fewer than 32 (as from: openssl rand -hex 32)"},
		{"missing", key("none"), "jwt.keys[0].secret_file: DIR/none: no such file or directory (name a file that is there)"},
		{"too long", key("long"), "jwt.keys[0].secret_file: DIR/long: more than 65536 bytes (name another file)"},
		{"a directory", key("."), "jwt.keys[0].secret_file: DIR/.: not a regular file (name another file)"},
		{"a public key", key("pem"), "jwt.keys[0].secret_file: holds a PEM block, which is no HMAC secret (whoever has that public key could sign tokens)"},
		{"a token of several words", "admin: {token_file: words}", "admin.token_file: holds more than one word of printable ASCII (as from: openssl rand -hex 16)"},
		{"a token of other characters", "admin: {token_file: latin1}", "admin.token_file: holds more than one word of printable ASCII (as from: openssl rand -hex 16)"},
		{"a password that is no text", "redis: {password_file: latin1}", "redis.password_file: is not UTF-8 text"},
		{"a short cookie secret", "anonymous: {cookie_secret_files: [cookie-new, short]}", "anonymous.cookie_secret_files[1]: holds 31 bytes, fewer than 32 (as from: openssl rand -hex 32)"},
		{
			"CK-07 one secret for tokens and cookies", "{anonymous: {cookie_secret_files: [hs256]}, jwt: {keys: [{alg: HS256, secret_file: hs256}]}}",
			"anonymous.cookie_secret_files[0]: holds the same secret as jwt.keys[0].secret_file (make one for each purpose)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, t.TempDir(), "sentinel.yaml", strings.NewReplacer("secret_file: ", "secret_file: "+dir+"/",
				"_file: ", "_file: "+dir+"/", "files: [", "files: ["+dir+"/", ", short]", ", "+dir+"/short]").Replace(tt.file))
			_, _, err := Load(file, nil)
			if got := strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"); got != file+":1: "+tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
