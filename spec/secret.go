package spec

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"

	"berth"
)

// NewSecretValue creates a secret or replaces its value.
type NewSecretValue struct {
	Name  string    `json:"name" doc:"letters, digits, _, . and -; as an environment variable without . and -"`
	Value Sensitive `json:"value" doc:"text of at most 64 KiB; no call returns it"`
}

// Bounds of secrets.
const (
	MaxSecretBytes = 64 << 10
	MaxSecrets     = 64 // of one job
	maxSecretName  = 128
)

// Validate returns all faults of the request at once, or nil. No fault reveals
func (n NewSecretValue) valueFault() string {
	switch {
	case n.Value == "":
		return "is empty"
	case len(n.Value) > MaxSecretBytes:
		return fmt.Sprintf("has %d bytes", len(n.Value))
	default:
		return "is not text"
	}
}

// anything about the value.
func (n NewSecretValue) Validate() []berth.FieldError {
	v := &validation{}
	v.secretName("name", n.Name)
	ok := n.Value != "" && len(n.Value) <= MaxSecretBytes && utf8.ValidString(string(n.Value)) &&
		!strings.ContainsRune(string(n.Value), 0)
	v.require(ok, "value", n.valueFault(),
		fmt.Sprintf("1 to %d bytes of text; encode binary values, for example as base64", MaxSecretBytes))
	if n.Name == WebhookSecret && n.Value != "" {
		_, err := ParseWebhookKeys(string(n.Value))
		v.require(err == nil, "value", "is not a valid key for signing webhooks",
			"whsec_ with 24 to 64 bytes in base64, as from echo whsec_$(openssl rand -base64 32)")
	}
	return v.faults
}

// Sensitive is a text that must not appear in logs or errors. Only an encoder, such as
// encoding/json, writes its value; formatting and logging write "(secret)".
type Sensitive string

func (Sensitive) String() string { return "(secret)" }

func (Sensitive) GoString() string { return "(secret)" }

func (Sensitive) LogValue() slog.Value { return slog.StringValue("(secret)") }

func (s Sensitive) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// SecretValue is a secret on its way to a machine.
type SecretValue struct {
	Name  string    `json:"name"`
	Value Sensitive `json:"value"`
}

// The values of Job.SecretsAs: environment variables, files in SecretsPath, or both.
const (
	SecretsBoth = "both"
	SecretsEnv  = "env"
	SecretsFile = "file"
)

// SecretsForms are all values of Job.SecretsAs.
var SecretsForms = []string{SecretsFile, SecretsEnv, SecretsBoth}

// SecretsPath is the folder of secrets in a container.
const SecretsPath = "/run/secrets"

// AllSecrets returns the names of all secrets in the spec, each once: those for the
// container, for the image pull and for inputs.
func (s Job) AllSecrets() []string {
	all := slices.Clone(s.Secrets)
	if s.ImageAuth != "" && !slices.Contains(all, s.ImageAuth) {
		all = append(all, s.ImageAuth)
	}
	for _, in := range s.Inputs {
		if in.Secret != "" && !slices.Contains(all, in.Secret) {
			all = append(all, in.Secret)
		}
	}
	return all
}

// secretName checks the name of a secret.
func (v *validation) secretName(field, name string) {
	ok := name != "" && len(name) <= maxSecretName && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' ||
			c == '.' || c == '-')
	}
	v.require(ok, field, fmt.Sprintf("%.200q is not a valid name of a secret", name),
		"1 to 128 letters, digits, _, . and -, not starting with . or -")
}

// isVariable reports whether a valid name of a secret is also a valid name of a shell
// variable.
func isVariable(name string) bool {
	return !strings.ContainsAny(name, ".-") && (name == "" || name[0] < '0' || name[0] > '9')
}

// validateSecrets checks the secrets of the container. A secret in the environment must
// not collide with other variables.
func (s Job) validateSecrets(v *validation) {
	if s.ImageAuth != "" {
		v.secretName("image_auth", s.ImageAuth)
	}
	v.require(len(s.Secrets) <= MaxSecrets, "secrets", "too many", fmt.Sprintf("at most %d", MaxSecrets))
	if s.SecretsAs != "" {
		v.oneOf("secrets_as", s.SecretsAs, SecretsForms...)
	}
	for i, name := range s.Secrets {
		field := fmt.Sprintf("secrets[%d]", i)
		v.secretName(field, name)
		v.require(!slices.Contains(s.Secrets[:i], name), field, "is listed twice", "once")
		if s.SecretsAs == SecretsFile {
			continue
		}
		_, set := s.Env[name]
		v.require(!set, field, "is also set in env", "only one of the two, or secrets_as: file")
		v.require(isVariable(name), field, fmt.Sprintf("%.200q is not a valid name of a variable", name),
			"letters, digits and _, or secrets_as: file")
		reserved := slices.ContainsFunc(reservedEnv, func(p string) bool { return strings.HasPrefix(name, p) })
		v.require(!reserved, field, "is set by Berth or by the GPU runtime", "another name, or secrets_as: file")
	}
}
