package connlimit_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"berth/internal/lib/connlimit"
)

// openUnread returns the context of a call whose answer of 1 MiB the client has not
// read, and the client's end of the connection.
func openUnread(t *testing.T, encrypted bool) (call context.Context, client net.Conn) {
	t.Helper()
	calls := make(chan context.Context, 1)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- r.Context()
		_, _ = w.Write(make([]byte, 1<<20))
	}))
	web.Config.ConnContext = connlimit.Context
	web.Listener = connlimit.New(web.Listener, connlimit.Of(100, nil))
	if encrypted {
		web.StartTLS()
	} else {
		web.Start()
	}
	t.Cleanup(web.Close)
	client, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if encrypted {
		config := web.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		config.ServerName = "example.com"
		client = tls.Client(client, config)
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return <-calls, client
}

// The bytes that a client has not read are known beneath TLS as well.
func TestAnswersThatAreNotReadAreKnown(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		call, _ := openUnread(t, false)
		if n := connlimit.Unread(call); n != 0 {
			t.Errorf("%d bytes are unread where the system does not say", n)
		}
		return
	}
	for _, encrypted := range []bool{false, true} {
		call, client := openUnread(t, encrypted)
		for late := time.Now().Add(time.Minute); connlimit.Unread(call) < 64<<10; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("TLS %v: of an answer that nobody reads, %d bytes are unread", encrypted, connlimit.Unread(call))
			}
		}
		res, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != 1<<20 || err != nil {
			t.Fatalf("TLS %v: the answer has %d bytes, %v", encrypted, n, err)
		}
		for late := time.Now().Add(time.Minute); connlimit.Unread(call) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("TLS %v: once all is read, %d bytes are unread", encrypted, connlimit.Unread(call))
			}
		}
	}
}

func TestTheConnectionOfACallCanBeClosed(t *testing.T) {
	t.Parallel()
	call, client := openUnread(t, false)
	connlimit.Close(call)
	if n, err := io.Copy(io.Discard, client); n >= 1<<20 {
		t.Errorf("the whole answer came, %d bytes, %v", n, err)
	}
	if n := connlimit.Unread(call); n != 0 {
		t.Errorf("%d bytes of a closed connection are unread", n)
	}
}
