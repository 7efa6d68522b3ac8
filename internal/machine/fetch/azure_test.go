package fetch_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/machine/fetch/azuretest"
	"berth/spec"
)

// The claims share one server, which is played.
func TestObjectsOfAzure(t *testing.T) {
	t.Parallel()
	server := azuretest.Start(t)
	keeps(t, place{server, server.Login, few(t)},
		claim{"a login may be a SAS token", func(t *testing.T, p place) {
			keepsAzureToken(t, p, server)
		}},
		claim{"what is everybody's takes no login", func(t *testing.T, p place) {
			server.Put("open/a", "a")
			in := server.Input("open/", "/d", "")
			in.From = "azblob://account/public/open/"
			if _, files, err := findAndRead(t, p.s, in, "", 1); err != nil || files["a"] != "a" {
				t.Errorf("it is %q, %v", files, err)
			}
		}},
		claim{"folders that the account keeps are folders", func(t *testing.T, p place) {
			server.PutFolder("tree/part")
			server.Put("tree/part/a", "a")
			server.PutFolder("tree/empty")
			_, files, err := findAndRead(t, p.s, server.Input("tree/", "/d", "AZ"), p.login, 1)
			if diff := cmp.Diff(map[string]string{"part/": "", "part/a": "a", "empty/": ""}, files); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			_, _, err = findAndRead(t, p.s, server.Input("tree/part", "/d", "AZ"), p.login, 1)
			refused(t, "a folder as a file", err, "azblob://account/container/tree/part is not an object")
		}},
		claim{"who may not read is refused", func(t *testing.T, p place) {
			server.Put("refuse/a", "a")
			in, other := server.Input("refuse/", "/d", "AZ"), server.Input("refuse/", "/d", "AZ")
			other.From = "azblob://account/no-such-container/x/"
			refusals(t, p.s, map[string]refusal{
				"nobody's login":    {server.Input("refuse/", "/d", ""), "", "409 Conflict (PublicAccessNotPermitted)"},
				"another key":       {in, "Y2FuYXJ5IGNhbmFyeSBjYW5hcnkgY2FuYXJ5", "azblob://account/container/refuse/: 403 Forbidden (AuthenticationFailed)"},
				"an old token":      {in, server.SAS("rl", -time.Hour), "403 Forbidden (AuthenticationFailed)"},
				"a token to read":   {in, server.SAS("r", time.Hour), "403 Forbidden (AuthorizationPermissionMismatch)"},
				"no login at all":   {in, "wrong canary", "secret AZ is neither a SAS token (sv=…&sig=…) nor an account key"},
				"a whole address":   {in, "https://account.blob.core.windows.net/container?sv=2022-11-02&sig=canary", "secret AZ is neither a SAS token"},
				"no such container": {other, p.login, "404 Not Found (ContainerNotFound)"},
			})
			odd := through(t, in, func(_ *http.Request, w http.ResponseWriter, _ http.Handler) {
				w.Header().Set("Content-Type", "application/xml")
				_, _ = io.WriteString(w, `<EnumerationResults><Blobs><Blob><Name>a</Name><Properties><Content-Length>canary</Content-Length></Properties></Blob></Blobs></EnumerationResults>`)
			})
			_, _, err := findAndRead(t, p.s, odd, p.login, 1)
			passing(t, "an answer that is none", err, "azblob://account/container/refuse/: the answer cannot be read")
		}})
}

func keepsAzureToken(t *testing.T, p place, server *azuretest.Server) {
	server.Put("token/a", "a")
	for _, login := range []spec.Sensitive{server.SAS("rl", time.Hour), spec.Sensitive(strings.TrimSpace(strings.TrimPrefix(string(server.SAS("lr", time.Hour)), "?")))} {
		if _, files, err := findAndRead(t, p.s, server.Input("token/", "/d", "AZ"), login, 1); err != nil || files["a"] != "a" {
			t.Errorf("it is %q, %v", files, err)
		}
	}
	// A redirect of a server is neither followed nor reported.
	away := through(t, server.Input("token/", "/d", "AZ"), func(r *http.Request, w http.ResponseWriter, _ http.Handler) {
		http.Redirect(w, r, "http://127.0.0.1:1/canary", http.StatusFound)
	})
	refusals(t, p.s, map[string]refusal{"a redirect": {away, server.SAS("rl", time.Hour), "302 Found"}})
	down := server.Input("token/", "/d", "AZ")
	down.Endpoint = "http://127.0.0.1:1/account"
	_, _, err := findAndRead(t, p.s, down, server.SAS("rl", time.Hour), 1)
	passing(t, "nobody there", err, "connection refused")
	if strings.Contains(err.Error(), "sig") {
		t.Errorf("the login is told: %v", err)
	}
}

func TestAMachineWhoseClockIsWrongBlamesNoKey(t *testing.T) {
	t.Parallel()
	server := azuretest.Start(t)
	server.Put("a", "a")
	server.Skew(time.Hour)
	_, _, err := findAndRead(t, few(t), server.Input("a", "/d", "AZ"), server.Login, 1)
	passing(t, "an hour apart", err, "the clock of this machine shows another time than the server's")
}
