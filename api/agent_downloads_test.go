package api_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/api"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/agentbin"
)

// agentFolder returns the programs of a folder with one agent, and its hash.
func agentFolder(t *testing.T, text string) (*agentbin.Binaries, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "linux-amd64"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "linux-amd64/berth-agent"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := agentbin.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
}

func TestNewMachinesDownloadTheAgent(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("agent ", 100_000)
	programs, hash := agentFolder(t, text)
	s := newSite(t, func(d *api.Deps) { d.Agents = programs })
	res, err := http.Get(s.url + cloud.AgentPath("linux-amd64", hash))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || string(body) != text || res.ContentLength != int64(len(text)) {
		t.Errorf("status %d, %d bytes of %d, %v", res.StatusCode, len(body), res.ContentLength, err)
	}
	if got := res.Header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control is %q", got)
	}
	for _, path := range []string{
		cloud.AgentPath("linux-arm64", hash), cloud.AgentPath("linux-amd64", strings.Repeat("0", 64)),
		cloud.AgentPath("linux-amd64", "..%2f..%2fetc%2fpasswd"), cloud.AgentPath("linux-amd64", ""),
	} {
		if a := s.call("", "GET", path, ""); a.status != http.StatusNotFound {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if a := newSite(t, nil).call("", "GET", cloud.AgentPath("linux-amd64", hash), ""); a.status != http.StatusNotFound ||
		!strings.Contains(a.body, "--agent-binaries") {
		t.Errorf("without programs: %d %s", a.status, a.body)
	}
}

// Callers of one address that do not read their downloads keep no other address out.
func TestDownloadsOfOneAddressAreLimited(t *testing.T) {
	t.Parallel()
	programs, hash := agentFolder(t, strings.Repeat("x", 32<<20)) // more than all buffers of a connection
	s := newSite(t, func(d *api.Deps) { d.Agents, d.Transfers.AgentStall = programs, time.Hour })
	for range api.DownloadsOfAddress {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: berth\r\n\r\n", cloud.AgentPath("linux-amd64", hash))
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("answer %q, %v", line, err)
		}
	}
	a := s.call("", "GET", cloud.AgentPath("linux-amd64", hash), "")
	if a.status != http.StatusTooManyRequests || !strings.Contains(a.body, "this address") {
		t.Errorf("one more download: %d %s", a.status, a.body)
	}
}

// A reader that takes a block now and then is cut off; one at the least rate gets 75 MB in five minutes.
func TestDownloadsHaveALeastRate(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	begun := time.Now()
	for name, test := range map[string]struct {
		rate  int // bytes in a second
		lasts time.Duration
	}{
		"a block in 9 seconds": {block / 9, 10 * time.Second},
		"200 KiB/s":            {200 << 10, 10 * time.Second},
		"270 KiB/s":            {270 << 10, 5 * time.Minute},
		"10 MiB/s":             {10 << 20, 5 * time.Minute},
	} {
		pace := api.NewDownloadPace()
		at := begun
		for {
			deadline := pace.Deadline(at, block)
			next := at.Add(time.Second * block / time.Duration(test.rate))
			if next.After(deadline) {
				at = deadline
				break
			}
			at = next
		}
		if got := at.Sub(begun); got != test.lasts {
			t.Errorf("%s: a download without end lasts %s, want %s", name, got, test.lasts)
		}
	}
}
