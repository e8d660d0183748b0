package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// behind starts a server that counts what reaches it, with a proxy in front.
func behind(t *testing.T, p *faultproxy.Proxy, handler http.HandlerFunc) (address string, served *atomic.Int32) {
	t.Helper()
	served = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	front, err := p.Serve("server", u, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return front.String(), served
}

func get(t *testing.T, address string) error {
	t.Helper()
	// One connection each: a client of net/http asks again by itself when a connection it has used before is cut.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(address)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func TestTheNthRequestStopsWhereItIsToldAndAllOthersPass(t *testing.T) {
	for _, tc := range []struct {
		moment faultproxy.Moment
		served int32
	}{{faultproxy.Before, 2}, {faultproxy.After, 3}} {
		t.Run(string(tc.moment), func(t *testing.T) {
			p := faultproxy.New()
			steppedIn := make(chan faultproxy.Request, 3)
			p.At(2, tc.moment, func(r faultproxy.Request) { steppedIn <- r })
			address, served := behind(t, p, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Forwarded-For") != "" {
					t.Error("the proxy shows itself by X-Forwarded-For")
				}
				_, _ = w.Write([]byte("fine"))
			})
			for n, want := range []bool{true, false, true} {
				if err := get(t, address+"/thing?q=1"); (err == nil) != want {
					t.Errorf("request %d: %v", n+1, err)
				}
			}
			if served.Load() != tc.served {
				t.Errorf("the server was asked %d times, want %d", served.Load(), tc.served)
			}
			want := faultproxy.Request{N: 2, Server: "server", Method: "GET", Path: "/thing", Query: "q=1"}
			if r := <-steppedIn; r != want || len(steppedIn) != 0 {
				t.Errorf("stepped in at %v and %d more, want %v alone", r, len(steppedIn), want)
			}
			if len(p.Requests()) != 3 {
				t.Errorf("requests %v, want 3", p.Requests())
			}
		})
	}
}

func TestAWatchIsPassedOnLineByLine(t *testing.T) {
	p := faultproxy.New()
	read := make(chan bool)
	address, _ := behind(t, p, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = w.Write([]byte("line\n"))
			_ = http.NewResponseController(w).Flush()
			<-read // a line held back would be waited for until the test's end
		}
	})
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := 0
	for s := bufio.NewScanner(resp.Body); s.Scan(); lines++ {
		read <- true
	}
	if lines != 3 {
		t.Errorf("%d lines, want 3", lines)
	}
}
