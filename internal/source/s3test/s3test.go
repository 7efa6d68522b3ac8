// Package s3test runs a server that speaks S3 for tests: versitygw, a real one,
// over a folder of its own. scripts/tool.sh builds it where it is not there yet.
package s3test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"berth"
)

// Server is a running server with one bucket.
type Server struct {
	URL    string
	Bucket string
	Login  berth.Sensitive // as the secret of an input is written
	t      testing.TB
	client *s3.Client
}

const keyID, secretKey = "test-key", "canary-of-a-secret-key"

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"data", "meta"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{t: t, Bucket: "bucket", Login: keyID + ":" + secretKey}
	program := tool(t)
	// Between the choice of a port and its use somebody else may take it.
	for try := 1; !s.run(program, dir); try++ {
		if try == 5 {
			t.Fatal("versitygw does not start")
		}
	}
	s.client = s3.New(s3.Options{
		BaseEndpoint: &s.URL, UsePathStyle: true, Region: "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: keyID, SecretAccessKey: secretKey}, nil
		}),
	})
	if _, err := s.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &s.Bucket}); err != nil {
		t.Fatal(err)
	}
	return s
}

// tool is the path of the server's program.
func tool(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("s3test: there is no go.mod above the test's folder")
		}
		dir = filepath.Dir(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "scripts", "tool.sh"), "versitygw")
	var says bytes.Buffer
	cmd.Stderr = &says
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("s3test: %v\n%s", err, says.String())
	}
	return strings.TrimSpace(string(path))
}

// run starts the process and reports whether it answers.
func (s *Server) run(program, dir string) bool {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(program, "--quiet", "--port", address, "posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Env = []string{"ROOT_ACCESS_KEY=" + keyID, "ROOT_SECRET_KEY=" + secretKey}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	limit := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			s.URL = "http://" + address
			return true
		}
		select {
		case <-ended:
			return false
		case <-limit:
			s.t.Fatal("versitygw does not answer")
		case <-tick.C:
		}
	}
}

// Put stores an object.
func (s *Server) Put(key, content string) {
	s.t.Helper()
	if _, err := s.client.PutObject(s.t.Context(), &s3.PutObjectInput{Bucket: &s.Bucket, Key: &key, Body: strings.NewReader(content)}); err != nil {
		s.t.Fatal(err)
	}
}

// Input is an input from the server.
func (s *Server) Input(key, to, secret string) berth.Input {
	return berth.Input{From: "s3://" + s.Bucket + "/" + key, To: to, Endpoint: s.URL, Secret: secret}
}
