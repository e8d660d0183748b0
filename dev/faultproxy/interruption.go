package faultproxy

import (
	"sync"
	"time"
)

// interruption interrupts a group of requests at once.
type interruption struct {
	points map[RequestID]Moment
	within time.Duration
	do     func(stopped []Request)

	mu      sync.Mutex
	stopped []Request
	begun   bool          // do is called
	ended   chan struct{} // closed after do
}

// InterruptAt interrupts the request that point identifies: the proxy calls do, and then cuts the connection. With
// Before, the server does not receive the request. With After, the server has answered, but the process gets no
// response. Call InterruptAt before the first request.
func (p *Proxy) InterruptAt(point RequestID, moment Moment, do func(Request)) {
	p.InterruptTogether(map[RequestID]Moment{point: moment}, 0, func(stopped []Request) { do(stopped[0]) })
}

// InterruptTogether interrupts several requests as InterruptAt does, all at once. It stops each request at its moment, until all are
// stopped. Then it calls do once with the stopped requests, and cuts their connections. A process may not send all of them, so the proxy waits at
// most the time within from the first stop. The function do may set the next interruption.
func (p *Proxy) InterruptTogether(points map[RequestID]Moment, within time.Duration, do func(stopped []Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interruption = &interruption{points: points, within: within, do: do, ended: make(chan struct{})}
}

// stopRequest stops a request until its interruption has ended. The caller then cuts the connection.
func (p *Proxy) stopRequest(i *interruption, r Request) {
	i.mu.Lock()
	if !i.begun { // otherwise the process has sent it before the kill, and the server has answered later
		i.stopped = append(i.stopped, r)
	}
	stopped := len(i.stopped)
	i.mu.Unlock()
	switch {
	case stopped == len(i.points):
		p.runInterruption(i)
	case stopped == 1:
		time.AfterFunc(i.within, func() { p.runInterruption(i) })
	}
	<-i.ended
}

// runInterruption calls the function of an interruption, unless it was called before.
func (p *Proxy) runInterruption(i *interruption) {
	i.mu.Lock()
	again := i.begun
	i.begun = true
	i.mu.Unlock()
	if again {
		return
	}
	p.mu.Lock()
	if p.interruption == i { // the next process may send the requests that are missing
		p.interruption = nil
	}
	p.mu.Unlock()
	i.do(i.stopped)
	close(i.ended)
}
