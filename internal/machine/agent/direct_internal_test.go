package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// signedText is an address as a store might sign it, with the parts that must not be shown.
const signedText = "https://store.example/bucket/key?X-Amz-Credential=AKIA&X-Amz-Signature=canary"

func TestAnAddressIsUsedOnlyWhereItsOwnerIsMeant(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address          string
		local, plaintext bool
		says             string
	}{
		"https":                           {"https://store.example/x", false, false, ""},
		"plain":                           {"http://store.example/x", false, false, "has no TLS"},
		"plain, accepted":                 {"http://store.example/x", false, true, ""},
		"loopback of the server's host":   {"http://127.0.0.1:9000/x", true, false, ""},
		"loopback of another host":        {"http://127.0.0.1:9000/x", false, true, "means this machine"},
		"loopback with TLS, another host": {"https://localhost:9000/x", false, true, "means this machine"},
		"loopback by IPv6, another host":  {"http://[::1]:9000/x", false, true, "means this machine"},
		"another scheme":                  {"file:///etc/passwd", true, true, "not an http or https URL"},
		"no host":                         {"https:///x", true, true, "not an http or https URL"},
		"a login":                         {"https://user:secret@store.example/x", true, true, "not an http or https URL"},
	} {
		u, err := url.Parse(c.address)
		if err != nil {
			t.Fatal(err)
		}
		err = (&directStore{local: c.local, plaintext: c.plaintext}).refuses(u)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsOfTransfersHideTheAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err      error
		unusable bool
	}{
		"refused connection": {&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true},
		"proxy away":         {&net.OpError{Op: "proxyconnect", Err: errors.New("connection refused")}, true},
		"refused tunnel":     {errUnusable{errors.New("the proxy refuses the tunnel: 403")}, true},
		"unknown name":       {&net.DNSError{Err: "no such host", Name: "store.example"}, true},
		"certificate":        {&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, true},
		"plain answer":       {http.ErrSchemeMismatch, true},
		"broken connection":  {io.ErrUnexpectedEOF, false},
		"broken read":        {&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, false},
		"end of time":        {context.DeadlineExceeded, false},
	} {
		err := transportFault(http.MethodPut, "store.example", &url.Error{Op: "Put", URL: signedText, Err: c.err})
		_, unusable := errors.AsType[errUnusable](err)
		if text := err.Error(); unusable != c.unusable || strings.Contains(text, "X-Amz") || strings.Contains(text, "canary") {
			t.Errorf("%s: unusable %v: %v", name, unusable, err)
		}
	}
	for name, c := range map[string]struct {
		status   int
		body     string
		unusable bool
	}{
		"a missing object":  {404, "<Error><Code>NoSuchKey</Code></Error>", false},
		"a missing upload":  {404, "<Error><Code>NoSuchUpload</Code></Error>", false},
		"a refusal":         {403, "<Error><Code>SignatureDoesNotMatch</Code><StringToSign>" + signedText + "</StringToSign></Error>", true},
		"a forged code":     {403, "<Error><Code>" + strings.ReplaceAll(signedText, "&", "&amp;") + "</Code></Error>", true},
		"no XML":            {404, signedText, true},
		"another content":   {400, "<Error><Code>BadDigest</Code></Error>", false},
		"another condition": {409, "<Error><Code>ConditionalRequestConflict</Code></Error>", false},
		"too many requests": {503, "<Error><Code>SlowDown</Code></Error>", false},
	} {
		err := storeFault(http.MethodPut, "store.example", &http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(c.body))})
		_, unusable := errors.AsType[errUnusable](err)
		if text := err.Error(); unusable != c.unusable || strings.Contains(text, "X-Amz") || strings.Contains(text, "canary") {
			t.Errorf("%s: unusable %v: %v", name, unusable, err)
		}
	}
}
