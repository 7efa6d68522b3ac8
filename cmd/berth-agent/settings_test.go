package main

import (
	"strings"
	"testing"
)

func TestAServerElsewhereNeedsTLS(t *testing.T) {
	t.Parallel()
	for server, says := range map[string]string{
		"http://127.0.0.1:7070": "", "http://localhost:7070": "", "http://[::1]:7070": "", "https://berth.example.com": "",
		"http://berth.example.com": "plain HTTP", "http://10.0.0.5:7070": "plain HTTP", "http://localhost.example.com": "plain HTTP",
		"berth.example.com:7070": "write https://", "10.0.0.5:7070": "write https://", "": "write https://", "ftp://x": "write https://",
	} {
		s := settings{server: server}
		err := s.checkServer()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", server, err)
		}
	}
	s := settings{server: "http://10.0.0.5:7070", plaintext: true}
	if err := s.checkServer(); err != nil {
		t.Errorf("allowed: %v", err)
	}
}
