package gstest_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"berth/internal/machine/fetch/gstest"
)

// TestPublishedSignaturesAreValid checks the verifier by Google's own vectors, and by each vector with one change.
func TestPublishedSignaturesAreValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/v4_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var published struct {
		Account, PublicKey string
		Vectors            []struct {
			Description, Method, ExpectedURL string
			Timestamp                        time.Time
			Headers                          map[string]string
		}
	}
	if err := json.Unmarshal(text, &published); err != nil || len(published.Vectors) != 6 {
		t.Fatalf("%d vectors, %v", len(published.Vectors), err)
	}
	block, _ := pem.Decode([]byte(published.PublicKey))
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range published.Vectors {
		request := func(edit func(*http.Request)) error {
			r, err := http.NewRequestWithContext(t.Context(), v.Method, v.ExpectedURL, nil)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range v.Headers {
				r.Header.Set(name, value)
			}
			if edit != nil {
				edit(r)
			}
			return gstest.Verify(key.(*rsa.PublicKey), published.Account, r, v.Timestamp)
		}
		if err := request(nil); err != nil {
			t.Errorf("%s: %v", v.Description, err)
		}
		for name, edit := range map[string]func(*http.Request){
			"another path":      func(r *http.Request) { r.URL.Path += "x" },
			"another method":    func(r *http.Request) { r.Method = "DELETE" },
			"another host":      func(r *http.Request) { r.Host = "example.com" },
			"another parameter": func(r *http.Request) { r.URL.RawQuery += "&x=y" },
			"a longer life": func(r *http.Request) {
				r.URL.RawQuery = strings.Replace(r.URL.RawQuery, "X-Goog-Expires=10", "X-Goog-Expires=11", 1)
			},
			"an unsigned header": func(r *http.Request) { r.Header.Set("X-Goog-Meta-Other", "x") },
			"another header": func(r *http.Request) {
				r.Header.Set("X-Goog-Content-Sha256", strings.Repeat("0", 64))
			},
		} {
			if err := request(edit); err == nil {
				t.Errorf("%s with %s is valid", v.Description, name)
			}
		}
	}
}
