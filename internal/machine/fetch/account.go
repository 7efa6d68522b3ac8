package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"berth"
	"berth/spec"
)

// mayRead is the scope of the tokens of service accounts, even if the account may do more.
const mayRead = "https://www.googleapis.com/auth/devstorage.read_only"

// googleTokens is the token server of keys without a token_uri.
const googleTokens = "https://oauth2.googleapis.com/token"

// serviceAccount makes tokens by the key of a service account. It may be used
// concurrently.
type serviceAccount struct {
	secret    string // its name
	config    jwt.Config
	transport http.RoundTripper
	turn      chan struct{} // taken while last is looked at and asked for
	last      *oauth2.Token
}

// serviceAccount reads a secret: the JSON key of a service account. Other files
// of credentials are refused, since they name programs and addresses of the
// machine that the login is taken from.
func (s *Sources) serviceAccount(secret string, login spec.Sensitive) (*serviceAccount, error) {
	var key struct {
		Type    string `json:"type"`
		Email   string `json:"client_email"`
		Private string `json:"private_key"`
		ID      string `json:"private_key_id"`
		Tokens  string `json:"token_uri"`
	}
	if json.Unmarshal([]byte(login), &key) != nil || key.Type != "service_account" || key.Email == "" ||
		key.Private == "" {
		return nil, refusedf("secret %s is not the JSON key of a service account", secret)
	}
	if key.Tokens == "" {
		key.Tokens = googleTokens
	}
	if u, err := url.Parse(key.Tokens); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return nil, refusedf("secret %s: token_uri is not a valid URL", secret)
	}
	if !spec.MayCarryLogin(key.Tokens) {
		return nil, refusedf("secret %s: token_uri uses plain http, which would expose tokens", secret)
	}
	return &serviceAccount{
		secret: secret, transport: s.objects.Transport, turn: make(chan struct{}, 1),
		config: jwt.Config{Email: key.Email, PrivateKey: []byte(key.Private), PrivateKeyID: key.ID,
			Scopes: []string{mayRead}, TokenURL: key.Tokens},
	}, nil
}

// token returns one that is good for a while. Who waits for another's question
// waits no longer than its own context.
func (a *serviceAccount) token(ctx context.Context) (string, error) {
	what := "a token for secret " + a.secret
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return "", fault(what, context.Cause(ctx))
	}
	if a.last.Valid() {
		return a.last.AccessToken, nil
	}
	ctx, _, end := watch(ctx)
	defer end()
	way := &way{ctx: ctx, next: a.transport}
	// A redirect could send the assertion, which is as good as a token, to another server.
	client := &http.Client{Transport: way,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	token, err := a.config.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, client)).Token()
	refusal, refused := errors.AsType[*oauth2.RetrieveError](err)
	switch {
	case err == nil && token.AccessToken != "":
		a.last = token
		return token.AccessToken, nil
	case refused && skewed(refusal.Response.Header):
		return "", errSkewed(what)
	case refused:
		var body struct {
			Error string `json:"error"`
		}
		_ = json.Unmarshal(refusal.Body, &body)
		return "", answer(what, refusal.Response.StatusCode, fmt.Sprintf("%.64s", body.Error))
	case way.err != nil:
		return "", fault(what, way.err)
	case !way.gone:
		return "", refusedf("secret %s: private_key is not valid", a.secret)
	default: // the library's text may repeat the server's answer
		return "", berth.Errorf(berth.CodeUnavailable, "%s: the answer cannot be read", what)
	}
}

// way is the transport of one request. The oauth2 library makes that request without a context
// and turns its error into text; way adds the context and keeps the error.
type way struct {
	ctx  context.Context //nolint:containedctx // of the one request
	next http.RoundTripper
	gone bool
	err  error
}

// RoundTrip records that the request was sent, and its error.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w.gone = true
	answer, err := w.next.RoundTrip(r.WithContext(w.ctx))
	w.err = err
	return answer, err
}

// skewed reports whether a server's clock is more than five minutes from this machine's, which
// makes the server refuse every signature.
func skewed(h http.Header) bool {
	at, err := http.ParseTime(h.Get("Date"))
	return err == nil && time.Since(at).Abs() > 5*time.Minute
}

// errSkewed returns the error of a refusal that a wrong clock explains. It is retried: clocks are
// corrected.
func errSkewed(what string) error {
	return berth.Errorf(berth.CodeUnavailable,
		"%s: refused, and the clock of this machine shows another time than the server's", what)
}
