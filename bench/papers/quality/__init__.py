"""Quality of answers that change models: DiSCo's section 5.3 and Appendix D again, with scores in place of judging models."""
