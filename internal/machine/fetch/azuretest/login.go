package azuretest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"berth/spec"
)

// encoded returns bytes in base64, the encoding of keys and signatures.
func encoded(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// sign returns the account's signature of a text.
func (s *Server) sign(text string) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(text))
	return encoded(h.Sum(nil))
}

// SAS is a token for the container, with permissions such as "rl", that is good
// for as long.
func (s *Server) SAS(permissions string, good time.Duration) spec.Sensitive {
	q := url.Values{"sp": {permissions}, "se": {time.Now().Add(good).UTC().Format(time.RFC3339)},
		"sv": {"2022-11-02"}, "sr": {"c"}, "spr": {"https,http"}}
	q.Set("sig", s.sign(s.tokenText(q, s.Container)))
	return spec.Sensitive("?" + q.Encode() + "\n")
}

// tokenText returns the signed part of a token for a container.
func (s *Server) tokenText(q url.Values, container string) string {
	// The order is that of Azure's string to sign; absent parameters leave an empty line.
	parts := []string{q.Get("sp"), q.Get("st"), q.Get("se"), "/blob/" + s.Account + "/" + container}
	for _, name := range []string{"si", "sip", "spr", "sv", "sr", "snapshot", "ses", "rscc", "rscd", "rsce",
		"rscl", "rsct"} {
		parts = append(parts, q.Get(name))
	}
	return strings.Join(parts, "\n")
}

// refuses judges the login of a request, a signature, a SAS token or none. It returns 0 for a
// request that may read, otherwise the status and Azure's error code.
func (s *Server) refuses(r *http.Request, container string, list bool) (status int, code string) {
	q := r.URL.Query()
	switch {
	case r.Header.Get("Authorization") != "":
		return s.refusesKey(r)
	case q.Get("sig") != "":
		// A token for the container allows reading and listing separately.
		needs := "r"
		if list {
			needs = "l"
		}
		until, err := time.Parse(time.RFC3339, q.Get("se"))
		if err != nil || s.now().After(until) ||
			!hmac.Equal([]byte(q.Get("sig")), []byte(s.sign(s.tokenText(q, container)))) {
			return http.StatusForbidden, "AuthenticationFailed"
		}
		if !strings.Contains(q.Get("sp"), needs) {
			return http.StatusForbidden, "AuthorizationPermissionMismatch"
		}
	case container != s.Public:
		return http.StatusConflict, "PublicAccessNotPermitted"
	}
	return 0, ""
}

// refusesKey checks a request signed by the account's key ("Shared Key"). The signature covers the
// method, the standard headers, all x-ms- headers and the resource with its query, each part in
// the order that Azure prescribes. A date more than 15 minutes off is refused before that.
func (s *Server) refusesKey(r *http.Request) (status int, code string) {
	if _, err := time.Parse(time.DateOnly, r.Header.Get("X-Ms-Version")); err != nil {
		return http.StatusBadRequest, "InvalidHeaderValue"
	}
	at, err := http.ParseTime(r.Header.Get("X-Ms-Date"))
	if err != nil || s.now().Sub(at).Abs() > 15*time.Minute {
		return http.StatusForbidden, "AuthenticationFailed"
	}
	var text strings.Builder
	text.WriteString(r.Method + "\n")
	for _, name := range []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-MD5",
		"Content-Type", "Date", "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"} {
		text.WriteString(r.Header.Get(name) + "\n")
	}
	var headers []string
	for name := range r.Header {
		if low := strings.ToLower(name); strings.HasPrefix(low, "x-ms-") {
			headers = append(headers, low+":"+r.Header.Get(name)+"\n")
		}
	}
	slices.Sort(headers)
	text.WriteString(strings.Join(headers, "") + "/" + s.Account + r.URL.EscapedPath())
	// The path is signed in its escaped form, and the query in its decoded one.
	var params []string
	for name, values := range r.URL.Query() {
		slices.Sort(values)
		params = append(params, "\n"+strings.ToLower(name)+":"+strings.Join(values, ","))
	}
	slices.Sort(params)
	text.WriteString(strings.Join(params, ""))
	if r.Header.Get("Authorization") != "SharedKey "+s.Account+":"+s.sign(text.String()) {
		return http.StatusForbidden, "AuthenticationFailed"
	}
	return 0, ""
}
