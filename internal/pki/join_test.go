package pki

import (
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

// FuzzJoinResponse reads any answer to a request to join: what is no certificate of the token's authority is refused.
func FuzzJoinResponse(f *testing.F) {
	authority, err := NewAuthority("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	_, certificate, err := authority.Issue(Subject{Role: RoleNode, Name: "n1"}, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(certificate)
	token := NewToken(authority.Certificate.Raw)
	whole, err := json.Marshal(JoinResponse{Certificate: block.Bytes, Authority: [][]byte{authority.Certificate.Raw}, Cluster: "c1"})
	if err != nil {
		f.Fatal(err)
	}
	if answer, err := readJoin("200 OK", true, whole); err != nil || checkJoin(token, answer) != nil {
		f.Fatalf("a good one: %v, %v", err, checkJoin(token, answer))
	}
	f.Add(true, whole)
	f.Add(true, whole[:len(whole)-9])
	f.Add(true, []byte(`{"elsewhere":"x"}`))
	f.Add(false, []byte(`{"error":"no"}`))
	f.Add(false, []byte("not found"))
	f.Add(true, []byte(`{"authority":[null,""],"certificate":""}`))
	f.Fuzz(func(t *testing.T, ok bool, text []byte) {
		answer, err := readJoin("status", ok, text)
		if err != nil || answer.Error != "" || answer.Elsewhere != "" {
			return
		}
		if checkJoin(token, answer) == nil && !strings.Contains(string(text), "certificate") {
			t.Errorf("%q lets in", text)
		}
	})
}
