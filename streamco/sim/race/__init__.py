"""The simulation of raced answers: clients, endpoints and recorded services (DiSCo)."""
